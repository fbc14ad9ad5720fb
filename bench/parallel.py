#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step on several ranks of this host: Shoal against PyTorch's DDP and FSDP2 on Gloo, in turns.

    .venv/bin/python bench/parallel.py [SHAPE …] [--preset release] [--rounds 20] [--only NAMES] [--profile]
    .venv/bin/python bench/parallel.py gpt_30m --microbatches 8   pipelines, against PyTorch's
    .venv/bin/python bench/parallel.py gpt_30m --batch 16 --hosts 2 --rate 1gbit   ranks on hosts of their own

SHAPE is a GPT of bench/shapes.toml; its batch is that of one rank. Ranks are processes of one thread, each on
a core of its own, and all wait at a pipe while it is not their turn; a step takes as long as on the slowest
rank. A line has the median of the ratios to the best of the peers with its 95 % interval, by time and by CPU
time, of a pipeline to the peer of its schedule; then the medians, the shortest (of a machine that others
use, the one to look at), and the most memory a rank had above what it had before there was a model; pages
that both have count half in each. Of Shoal also the most that all ranks together had in tensors and
communicators. Hosts are network namespaces (as root); there a line also says how much of the time that
messages take without overlap a step still waits for them, by the trace of all ranks: of each message from
when the last of them waits for it, as what another is late by is no message's time. With --profile a
pipeline's line has its step over what ranks compute and the schedule's own bubble.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

import namespaces
from paired import interval

ROOT = pathlib.Path(__file__).resolve().parents[1]
OURS = ["data_parallel", "zero1", "zero2", "zero3"]
IN_TURN = ["data_parallel_in_turn", "zero3_in_turn"]
PEERS = ["ddp", "fsdp2", "fsdp2_kept"]
STAGED_PEERS = [f"torch_{schedule}" for schedule in ("gpipe", "1f1b", "interleaved_1f1b", "zbv")]
STAGED = [name.replace("torch", "pipeline") for name in STAGED_PEERS] + ["pipeline_zb_h1"]
CONTENDERS = OURS + IN_TURN + PEERS + STAGED + STAGED_PEERS


class Group:
    """The ranks of one contender, each a process of `command`, the contender's name and the shape."""

    def __init__(self, command, name, shape, ranks, hosts=None, port=None):
        self.name = name
        self.turns = []
        self.loss = None  # after the first steps
        store = tempfile.mktemp(prefix="bench_parallel_")
        cores = sorted(os.sched_getaffinity(0))
        self.processes = []
        for rank in range(ranks):
            words = [*command, name, json.dumps(shape)]
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
            }
            if hosts:
                machines, key = hosts
                here = ranks // len(machines)
                words = namespaces.on(machines[rank // here], words)
                environment = namespaces.environment(rank, ranks, rank % here, here, key, port)
            self.processes.append(
                subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    preexec_fn=lambda rank=rank: os.sched_setaffinity(0, {cores[rank % len(cores)]}),
                    env=environment | {"BENCH_STORE": f"file://{store}"},
                )
            )

    def ask(self, line):
        for process in self.processes:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        answers = [process.stdout.readline() for process in self.processes]
        if not all(answers):
            raise RuntimeError(f"{self.name} ended")
        return [json.loads(answer) for answer in answers]

    def run(self, steps):
        answers = self.ask(steps)
        return {
            "seconds": max(answer["seconds"] for answer in answers) / steps,
            "cpu": sum(answer["cpu"] for answer in answers) / len(answers) / steps,
            "waited": waited([answer.get("waits", []) for answer in answers]) / steps,
            "stood": max(sum(answer.get("waits", [])) for answer in answers) / steps,
            "worked": sum(answer["seconds"] - sum(answer.get("waits", [])) for answer in answers)
            / len(answers)
            / steps,
            "bytes": max(answer["bytes"] for answer in answers),
            "held": sum(answer.get("held", 0) for answer in answers),
            "loss": answers[0]["loss"],
        }

    def of(self, what):
        return [turn[what] for turn in self.turns]

    def end(self):
        for process in self.processes:  # all of them first: they end together
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def waited(of_ranks):
    """Seconds in which all ranks waited for the same message, of the times each rank waited for one."""
    if len({len(waits) for waits in of_ranks}) > 1:  # stages have messages of their own
        return math.nan
    return sum(min(waits) for waits in zip(*of_ranks, strict=True))


def ratios(group, best, what):
    pairs = zip(group.of(what), best.of(what), strict=True)
    return "{:.3f} [{:.3f}, {:.3f}]".format(*interval([ours / theirs for ours, theirs in pairs]))


def median(values):
    return interval(values)[0]


def schedule_of(name):
    """Of a pipeline; of others nothing."""
    return name.partition("_")[2] if name in STAGED + STAGED_PEERS else ""


def contenders_of(arguments):
    if arguments.only:
        return arguments.only
    if arguments.microbatches:
        return STAGED + STAGED_PEERS
    return OURS + (IN_TURN if arguments.hosts else []) + PEERS


def command_of(contender, preset):
    if contender in PEERS + STAGED_PEERS:
        return [sys.executable, str(ROOT / "bench/parallel_torch.py")]
    return [str(ROOT / "build" / preset / "bench/parallel")]


def bubble(contender, arguments):
    """Of a schedule whose passes take the same, over what a rank computes."""
    schedule = schedule_of(contender)
    per_rank = 2 if schedule in ("interleaved_1f1b", "zbv") else 1
    words = [f"--schedule={schedule}", f"--stages={per_rank * arguments.ranks}", "--times=1,1,1,0"]
    words += [f"--microbatches={arguments.microbatches}"]
    program = ROOT / "build" / arguments.preset / "shoal"
    said = subprocess.run([program, "simulate", *words], capture_output=True, text=True, check=True).stdout
    rate = float(re.search(r"bubble rate ([\d.]+)", said)[1])
    return rate / (1 - rate)


def compare(name, shape, arguments, hosts):
    groups = []
    try:
        for number, contender in enumerate(contenders_of(arguments)):
            port = 29100 + 10 * number
            group = Group(
                command_of(contender, arguments.preset), contender, shape, arguments.ranks, hosts, port
            )
            groups.append(group)
            try:
                group.loss = group.run(3)["loss"]  # capture, first touch of memory
            except RuntimeError as error:
                print(f"{name}: {error}; it is left out", flush=True)
                groups.pop().end()
                continue
            assert abs(group.loss - groups[0].loss) < 0.1 * group.loss, f"{contender} learns something else"
        begin = time.monotonic()
        for round in range(arguments.rounds):
            if round and (time.monotonic() - begin) * (1 + 1 / round) > arguments.seconds:
                break
            for group in groups if round % 2 else groups[::-1]:
                group.turns.append(group.run(shape["steps"]))
        peers = [group for group in groups if group.name in PEERS + STAGED_PEERS]
        best = min(peers or groups, key=lambda group: median(group.of("seconds")))
        thrifty = min(peers or groups, key=lambda group: median(group.of("cpu")))
        for group in groups:
            same = [peer for peer in peers if schedule_of(peer.name) == schedule_of(group.name) != ""]
            [in_time, in_cpu] = same * 2 or [best, thrifty]
            print(
                f"{name:9} {group.name:14} {ratios(group, in_time, 'seconds')} of {in_time.name}'s time, "
                f"{ratios(group, in_cpu, 'cpu')} of {in_cpu.name}'s CPU time; "
                f"{median(group.of('seconds')) * 1e3:.2f} ms, "
                f"at least {min(group.of('seconds')) * 1e3:.2f} ms, "
                f"CPU {median(group.of('cpu')) * 1e3:.2f} ms, "
                f"{max(group.of('bytes')) / 2**20:.1f} MiB, "
                + (f"{held / 2**20:.0f} MiB of tensors, " if (held := max(group.of("held"))) else "")
                + f"{len(group.turns)} rounds",
                flush=True,
            )
        for group in groups:
            [in_turn] = [other for other in groups if other.name == group.name + "_in_turn"] or [None]
            if in_turn:
                exposed, sent = median(group.of("waited")), median(in_turn.of("waited"))
                stood, in_all = median(group.of("stood")), median(in_turn.of("stood"))
                print(
                    f"{name:9} {group.name:14} waits {exposed * 1e3:.1f} ms a step for messages that take "
                    f"{sent * 1e3:.1f} ms: {exposed / sent:.2f}; with what another rank is late by "
                    f"{stood * 1e3:.1f} of {in_all * 1e3:.1f} ms",
                    flush=True,
                )
        for group in groups if arguments.profile else ():
            if group.name in STAGED:
                least = [(1 + bubble(group.name, arguments)) * work for work in group.of("worked")]
                rate = median(
                    [ours / at_least for ours, at_least in zip(group.of("seconds"), least, strict=True)]
                )
                print(
                    f"{name:9} {group.name:14} {rate:.3f} of what ranks compute and the schedule's own bubble"
                )
        if arguments.profile:
            for group in groups:
                if group.name not in PEERS + STAGED_PEERS:
                    print(f"{name} {group.name}, each rank:", flush=True)
                    group.ask("profile")
    finally:
        for group in groups:
            group.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end the rounds of a shape by then")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, help="samples of a rank, in place of the shape's")
    parser.add_argument("--hosts", type=int, default=0, help="share the ranks among so many namespaces")
    parser.add_argument("--rate", help="of each host's link, as tc has it: 1gbit")
    parser.add_argument(
        "--microbatches", type=int, default=0, help="pipelines, of so many of the shape's batch"
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help="contenders: " + ", ".join(CONTENDERS),
    )
    parser.add_argument(
        "--profile", action="store_true", help="where Shoal's time goes, by op; costs a little"
    )
    arguments = parser.parse_args()
    shapes = tomllib.loads((ROOT / "bench/shapes.toml").read_text())
    for name in arguments.shapes:
        if name not in shapes:
            parser.error(f"SHAPE is {name!r}, which is none of {', '.join(shapes)}")
    for name in arguments.only or []:
        if name not in CONTENDERS:
            parser.error(f"--only has {name!r}, which is none of {', '.join(CONTENDERS)}")
    for name in arguments.shapes or ["tiny_gpt", "gpt_30m"]:
        shape = shapes[name] | ({"trace": True} if arguments.profile or arguments.hosts else {})
        if arguments.batch:
            shape |= {"batch": arguments.batch}
        if arguments.microbatches:
            shape |= {
                "microbatches": arguments.microbatches,
                "batch": shape["batch"] * arguments.microbatches,
            }
        if arguments.hosts:
            where = namespaces.hosts(arguments.hosts, arguments.rate)
        else:
            where = contextlib.nullcontext()
        with where as hosts:
            compare(name, shape, arguments, hosts)


if __name__ == "__main__":
    main()
