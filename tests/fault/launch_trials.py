#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the launcher promises, tried many times. All print figures, and fail where one is not as it should be.

    launch_trials.py faults 200 [SEED]  a random fault of a random rank at a random step: how does a job end?
    launch_trials.py notice 50 [SEED]   kill -9 of a random rank: how soon do the others have the error?
    launch_trials.py restart 20 [SEED]  kill -9 with --max-restarts: how soon does the job go on?
    launch_trials.py strangers 100000   wrong keys, and garbage on every port, against a job that works
    launch_trials.py calm 600           8 ranks for so many seconds: does one raise a false alarm?
    launch_trials.py start 9            two ranks: start, first call, end, beside torchrun of the same program

Processes, sockets and /dev/shm are compared before and after. As root it runs in namespaces of its own,
so that what else this machine does is not seen.
"""

import collections
import os
import pathlib
import random
import re
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal")).resolve()
LIMIT = 2  # seconds that a rank waits for others
START = 3  # seconds that five processes with LibTorch need on two cores
FAULTS = dict.fromkeys(["kill", "segfault", "exit", "exception", "leave", "skip", "count"], START + 5)
FAULTS["stop"] = START + LIMIT + 5  # within which each job has to end, its start included


def left_behind():
    program = str(SHOAL.parent / "example_ranks").encode()
    ours = []
    for process in pathlib.Path("/proc").iterdir():
        try:
            if process.name.isdigit() and program in (process / "cmdline").read_bytes():
                ours.append(process.name)
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            pass
    return sorted(ours), sorted(listening(ours)), sorted(os.listdir("/dev/shm"))


def trial(dice):
    backend, fault = dice.choice(["shm", "gloo"]), dice.choice(list(FAULTS))
    ranks = dice.randint(3, 5)
    victim, step = dice.randrange(ranks), dice.randrange(5, 200)
    command = [SHOAL, "run", "-n", ranks, f"--limit={LIMIT}", SHOAL.parent / "example_ranks", "--steps=200"]
    command += [f"--backend={backend}", f"--fault={fault}", f"--at={victim}:{step}"]
    begin = time.monotonic()
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    seconds = time.monotonic() - begin
    named = re.search(r"^shoal run: ranks? ([\d, ]+) failed first", result.stderr, re.MULTILINE)
    right = result.returncode != 0 and named is not None and named[1] == str(victim)
    return " ".join(str(word) for word in command[1:]), fault, seconds, right, result.stderr


def faults(trials, dice):
    wrong, times = 0, collections.defaultdict(list)
    for number in range(trials):
        command, fault, seconds, right, errors = trial(dice)
        times[fault].append(seconds)
        if not right or seconds > FAULTS[fault]:
            wrong += 1
            print(
                f"trial {number}: {command}: {seconds:.1f} s, {'named' if right else 'not named'}\n{errors}"
            )
    for fault, seconds in sorted(times.items()):
        print(f"seen: {len(seconds)} times {fault}, {max(seconds):.2f} s at most, limit {FAULTS[fault]} s")
    return wrong


def ranks_below(launcher):
    """The process of each rank."""
    found = {}
    for process in pathlib.Path("/proc").iterdir():
        try:
            if (
                process.name.isdigit()
                and b"example_ranks" in (process / "cmdline").read_bytes().split(b"\0")[0]
            ):
                keeper = (process / "stat").read_text().rsplit(")", 1)[1].split()[1]
                guardian = pathlib.Path(f"/proc/{keeper}/stat").read_text().rsplit(")", 1)[1].split()[1]
                if int(guardian) == launcher:
                    found[int(re.search(rb"\0RANK=(\d+)", (process / "environ").read_bytes())[1])] = int(
                        process.name
                    )
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


class Job:
    """Ranks that go on until they are ended; how far they are is in a file."""

    def __init__(self, backend, ranks, folder, *flags):
        self.state = pathlib.Path(folder) / "state"
        self.state.unlink(missing_ok=True)
        command = [SHOAL, "run", "-n", ranks, *flags, SHOAL.parent / "example_ranks", "--steps=1000000000"]
        command += [f"--backend={backend}", "--count=10", f"--state={self.state}"]
        self.process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
        while self.step() < 20:
            self.work(0.01)

    def work(self, seconds):
        """Lets it, unless it ends."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return
        raise RuntimeError(f"the job has ended: {self.process.stderr.read()}")

    def step(self):
        try:
            return int(self.state.read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return 0

    def speed(self, seconds):
        first, begin = self.step(), time.monotonic()
        self.work(seconds)
        return (self.step() - first) / (time.monotonic() - begin)

    def end(self):
        """What it said in the meantime."""
        alive = self.process.poll() is None
        self.process.terminate()
        errors = self.process.communicate(timeout=40)[1]
        return errors if alive else errors + "ended by itself"


def notice(trials, dice):
    wrong, delays = 0, collections.defaultdict(list)
    for number in range(trials):
        backend, ranks = dice.choice(["shm", "gloo"]), dice.randint(3, 5)
        with tempfile.TemporaryDirectory() as folder:
            job = Job(backend, ranks, folder)
            job.work(dice.random() / 10)
            victim = dice.randrange(ranks)
            process = ranks_below(job.process.pid)[victim]
            begin = time.monotonic()
            os.kill(process, signal.SIGKILL)
            heard = {}
            for line in job.process.stderr:
                if (rank := re.match(r"\[(\d+)\]", line)) and int(rank[1]) not in heard:
                    heard[int(rank[1])] = time.monotonic() - begin
            job.process.wait(timeout=20)
        delays[backend] += heard.values()
        missing = set(range(ranks)) - {victim} - set(heard)
        if missing or max(heard.values()) > 0.5:
            wrong += 1
            print(f"trial {number}, {backend}, {ranks} ranks, {victim} killed: {heard}, no word of {missing}")
    for backend, seconds in sorted(delays.items()):
        points = [
            f"{100 * q:g} % {sorted(seconds)[int(q * (len(seconds) - 1))] * 1000:.0f} ms"
            for q in (0.5, 0.9, 0.99, 1)
        ]
        print(f"seen: {backend}, {len(seconds)} ranks had the error after: {', '.join(points)}")
    return wrong


def restart(trials, dice):
    wrong, delays = 0, collections.defaultdict(list)
    begin = time.monotonic()
    own = [str(SHOAL.parent / "example_ranks"), "--steps=1"]
    for _ in range(5):
        subprocess.run(own, check=True, capture_output=True)
    start = (time.monotonic() - begin) / 5
    for number in range(trials):
        backend, ranks = dice.choice(["shm", "gloo"]), dice.randint(2, 4)
        with tempfile.TemporaryDirectory() as folder:
            job = Job(backend, ranks, folder, "--max-restarts=3")
            os.kill(ranks_below(job.process.pid)[dice.randrange(ranks)], signal.SIGKILL)
            begin, step = time.monotonic(), job.step() + 2  # what was under way may still come to its end
            while job.step() <= step:
                job.work(0.005)
            delays[backend].append(time.monotonic() - begin)
            errors = job.end()
        if delays[backend][-1] > 3 + start or "restart 1 of 3" not in errors:
            wrong += 1
            print(f"trial {number}, {backend}, {ranks} ranks: {delays[backend][-1]:.2f} s\n{errors}")
    for backend, seconds in sorted(delays.items()):
        median, most = statistics.median(seconds), max(seconds)
        print(
            f"seen: {backend}, {len(seconds)} restarts: progress after {median:.2f} s, {most:.2f} s at most"
        )
    print(f"the program alone takes {start:.2f} s")
    return wrong


def listening(processes):
    """Addresses of what these processes listen on."""
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout.splitlines()
    return [line.split()[3] for line in lines if any(f"pid={process}," in line for process in processes)]


def wrong_key(address):
    """Answers the greeting as the protocol has it, with a proof by another key; whether that was accepted.

    A refusal is 32 zeros (shoal/rendezvous/handshake.h).
    """
    with socket.create_connection(address, timeout=20) as stranger:
        hello = stranger.recv(4096)
        stranger.sendall(hello[: len(hello) - 32] + secrets.token_bytes(64))
        try:
            return any(stranger.recv(32, socket.MSG_WAITALL))
        except ConnectionResetError:
            return False


def strangers(trials, _):
    wrong = 0
    for backend in ["shm", "gloo"]:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(backend, 2, folder)
            keeper = int(pathlib.Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text())
            served = listening([keeper])
            ports = listening([keeper, *ranks_below(job.process.pid).values()])
            wild = [port for port in ports if not port.startswith(("127.0.0.1:", "[::1]:"))]
            address = ("127.0.0.1", int(served[0].rsplit(":", 1)[1]))
            window = 1 if trials > 10000 else 0.2
            before, accepted = statistics.median(job.speed(window) for _ in range(5)), []
            begin = time.monotonic()

            def attack(num, address=address, accepted=accepted):
                accepted.extend(wrong_key(address) for _ in range(num))

            threads = [threading.Thread(target=attack, args=[trials // 2]) for _ in range(2)]
            first = job.step()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.monotonic() - begin
            during = (job.step() - first) / seconds
            for port in ports:
                with socket.create_connection(("127.0.0.1", int(port.rsplit(":", 1)[1]))) as stranger:
                    try:
                        stranger.sendall(secrets.token_bytes(1 << 20))
                    except (BrokenPipeError, ConnectionResetError):
                        pass
            after = statistics.median(job.speed(window) for _ in range(5))
            errors = job.end()
        wrong += bool(wild or errors or any(accepted) or len(accepted) < trials // 2 * 2)
        # On two cores the job, its strangers and who answers them share what there is.
        if os.cpu_count() > 2 and seconds > 5:
            wrong += during < 0.8 * before
        print(f"seen: {backend}, {len(accepted)} wrong keys in {seconds:.0f} s, {sum(accepted)} accepted")
        print(f"      then 1 MB of garbage on each of {len(ports)} ports; not on loopback: {wild or 'none'}")
        print(f"seen: {backend}, steps a second: {before:.0f} before, {during:.0f} during, {after:.0f} after")
        print(f"      errors: {errors or 'none'}")
    return wrong


def calm(seconds, _):
    wrong = 0
    for backend in ["shm", "gloo"]:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(backend, 8, folder)
            first = job.step()
            job.work(seconds)
            steps = job.step() - first
            errors = job.end()
        wrong += bool(errors) or steps == 0
        print(f"seen: {backend}, 8 ranks, {seconds} s, {steps} steps; errors: {errors or 'none'}")
    return wrong


def start(trials, _):
    torchrun = pathlib.Path(sys.executable).parent / "torchrun"
    program = [str(SHOAL.parent / "example_ranks"), "--steps=1"]
    ours = [str(SHOAL), "run", "-n", "2", *program]
    ways = {
        "shm": [*ours, "--backend=shm"],
        "Gloo": [*ours, "--backend=gloo"],
        "torchrun": [str(torchrun), "--no-python", "--nproc-per-node=2", *program],
    }
    seconds = collections.defaultdict(list)
    for _ in range(trials):
        for way, command in ways.items():
            begin = time.monotonic()
            subprocess.run(command, check=True, capture_output=True)
            seconds[way].append(time.monotonic() - begin)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    print("seen: start, first call, end: " + ", ".join(f"{way} {s:.2f} s" for way, s in medians.items()))
    return int(max(medians["shm"], medians["Gloo"]) > medians["torchrun"])


KINDS = {
    "faults": faults,
    "notice": notice,
    "restart": restart,
    "strangers": strangers,
    "calm": calm,
    "start": start,
}


def alone():
    """Starts this program again where there are no processes, sockets and shared pages but its own."""
    script = 'mount -t tmpfs none /dev/shm && ip link set lo up && exec "$@"'
    command = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "--net",
        "--ipc",
        "sh",
        "-c",
        script,
        "sh",
    ]
    os.environ["LAUNCH_TRIALS_ALONE"] = "1"
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in KINDS:
        sys.exit(__doc__)
    if os.geteuid() == 0 and "LAUNCH_TRIALS_ALONE" not in os.environ:
        alone()
    kind, trials = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(10**6)
    before = left_behind()
    wrong = KINDS[kind](trials, random.Random(seed))
    after = left_behind()
    if after != before:
        print(f"left behind: {after}, before: {before}")
    left = "nothing" if after == before else "something"
    print(f"{trials} trials of {kind}, seed {seed}: {wrong} wrong, {left} left")
    sys.exit(bool(wrong) or after != before)


if __name__ == "__main__":
    main()
