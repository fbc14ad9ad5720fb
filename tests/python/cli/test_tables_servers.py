# SPDX-License-Identifier: Apache-2.0
"""Servers that end, come and leave while a run goes on."""

import json
import os
import random
import re
import signal
import subprocess
import time

import pytest
from processes import line_of
from small import SMALL, losses_in


def children_of(process):
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(process)], capture_output=True, text=True
    )
    rows = [line.split(None, 1) for line in listed.stdout.splitlines()]
    return {int(row[0]): row[1] if len(row) > 1 else "" for row in rows}


def servers_below(process):
    found = []
    for child, command in children_of(process).items():
        found += [child] if "ps serve" in command else servers_below(child)
    return found


# The server ends in the middle of the run, which then has the losses of one that nobody disturbed.
@pytest.mark.parametrize(("which", "servers", "threads"), [(0, 2, 1), (1, 2, 2), (2, 3, 1)])
def test_a_run_goes_on_to_the_bit_where_a_server_is_killed(shoal, tmp_path, which, servers, threads):
    command = [shoal.path, "train", "recipes/deepfm.toml", *SMALL, "-n", "2", f"--ps.servers={servers}"]
    command += ["--training.steps=60", "--validation.freq=20", "--metrics.log_freq=1"]
    command += [f"--ps.threads={threads}"]

    def train(name, at_step=None):
        folder = tmp_path / name
        with subprocess.Popen(
            [*command, f"--job.dump_folder={folder}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as run:
            try:
                while at_step and f"step: {at_step:>2}" not in line_of(run):
                    pass
                if at_step:
                    begin = time.monotonic()
                    os.kill(servers_below(run.pid)[which], signal.SIGKILL)
                    while f"step: {at_step + 3:>2}" not in line_of(run):
                        pass
                    print(f"seen: 3 steps within {time.monotonic() - begin:.2f} s of a server's end")
                    assert time.monotonic() - begin < 2
                _, errors = run.communicate(timeout=60)
            finally:
                run.kill()
        assert run.returncode == 0, errors
        return errors, losses_in(folder)

    _, wanted = train("undisturbed")
    errors, losses = train("disturbed", at_step=9)
    assert losses == wanted
    assert re.search(
        r"shoal run: server \d: killed by signal 9 \(Killed\); training goes on with the copies of", errors
    )


def losses_until(command, folder, is_enough):
    """Losses by step of a run that is interrupted when is_enough(line, step) says so."""
    with subprocess.Popen(
        [*command, f"--job.dump_folder={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        try:
            at, said = 0, []
            for line in run.stdout:
                step = re.search(r"step: +(\d+)", line)
                at = int(step[1]) if step else at
                said.append(line)
                if is_enough(line, at, run):
                    break
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 128 + signal.SIGINT, "".join(said[-20:])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


# Each when the rows are on two servers again. A hundred of them: SHOAL_WHOLE_MATRIX=1.
@pytest.mark.timeout(3600)
def test_servers_killed_over_and_over_change_no_bit(shoal, tmp_path):
    kills = 100 if os.environ.get("SHOAL_WHOLE_MATRIX") else 6
    command = [shoal.path, "train", "recipes/deepfm.toml", *SMALL, "-n", "2", "--ps.servers=2"]
    command += ["--training.steps=1000000", "--validation.freq=1000000", "--dataset.samples=20000"]
    command += ["--metrics.log_freq=1"]
    took, killed_at, until, last = [], None, 20, time.monotonic()

    def kill(line, step, run):
        nonlocal killed_at, until, last
        if "each row is on two servers again" in line:
            until = step + random.randrange(1, 20)
        if "step: " not in line:
            return False
        if killed_at and step >= killed_at[0] + 3:
            took.append(time.monotonic() - killed_at[1])
            killed_at = None
        if until and not killed_at and step >= until and len(took) < kills:
            killed_at, until, last = (step, time.monotonic()), None, time.monotonic()
            os.kill(random.choice(servers_below(run.pid)), signal.SIGKILL)
        assert time.monotonic() - last < 60, "nobody says that each row is on two servers again"
        return until is not None and len(took) == kills

    disturbed = losses_until(command, tmp_path / "disturbed", kill)
    steps = max(disturbed)
    wanted = losses_until(command, tmp_path / "undisturbed", lambda _, step, __: step >= steps)
    print(f"seen: {len(took)} servers killed over {steps} steps, 3 steps within {max(took):.2f} s each time")
    assert disturbed == {step: loss for step, loss in wanted.items() if step <= steps}
    assert len(disturbed) == steps
    assert max(took) < 2


# One server, two, four, three, while two ranks train; and one that is killed as soon as it is given rows.
def test_servers_come_and_leave_while_a_run_goes_on_to_the_bit(shoal, tmp_path):
    command = [
        shoal.path,
        "train",
        "recipes/deepfm.toml",
        *SMALL,
        "-n",
        "2",
        "--ps.servers=1",
        "--ps.parts=4",
    ]
    command += ["--training.steps=2000", "--validation.freq=2000", "--metrics.log_freq=5"]
    wanted = shoal(*command[1:], f"--job.dump_folder={tmp_path / 'undisturbed'}")
    assert wanted.returncode == 0, wanted.stderr
    folder = tmp_path / "moved"
    log = tmp_path / "log.txt"

    def ps(verb, *options):
        result = shoal("ps", verb, folder, *options)
        return result.returncode, result.stdout + result.stderr

    assert ps("add")[0] == 1
    assert "no job runs in" in ps("add")[1]
    with (
        log.open("w") as out,
        subprocess.Popen(
            [*command, f"--job.dump_folder={folder}"], stdout=out, stderr=subprocess.STDOUT
        ) as run,
    ):
        try:
            while run.poll() is None and "step: " not in log.read_text():
                pass
            assert (folder / "running.json").stat().st_mode & 0o777 == 0o600
            code, said = ps("add")
            assert code == 0 and "; the servers are 0, 1, of 4 parts" in said, said
            code, said = ps("add", "--servers=2")
            assert code == 0 and "; the servers are 0, 1, 2, 3, of 4 parts" in said, said
            code, said = ps("add")
            assert code == 1 and "5 threads of servers would share 4 parts" in said, said
            code, said = ps("remove", "--server=7")
            assert code == 1 and "there is no server 7 that could leave; there is 0, 1, 2, 3" in said, said
            with subprocess.Popen(
                [shoal.path, "ps", "remove", folder, "--server=0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as removes:
                assert "server 0: " in line_of(removes)  # it begins
                os.kill(servers_below(run.pid)[2], signal.SIGKILL)
                assert removes.wait(30) == 0
            until = time.monotonic() + 10  # the process ends after the map has nothing of it
            while len(servers_below(run.pid)) != 3 and time.monotonic() < until:
                pass
            assert len(servers_below(run.pid)) == 3
            running = (folder / "running.json").read_text()
            run.wait(60)
        finally:
            run.kill()
    assert run.returncode == 0, log.read_text()
    assert "shoal run: server 0 has left" in log.read_text()
    assert losses_in(folder) == losses_in(tmp_path / "undisturbed")
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    slowest = max(step["seconds"] for step in steps[10:] if "seconds" in step)
    print(f"seen: a step took {1000 * slowest:.0f} ms at most")
    assert slowest < 1
    assert not (folder / "running.json").exists()
    (folder / "running.json").write_text(running)
    (folder / "running.json").chmod(0o600)
    code, said = ps("remove", "--server=1")
    assert code == 1 and "runs no more" in said, said
    (folder / "running.json").chmod(0o644)
    assert "may be read by others" in ps("add")[1]


def test_a_server_that_is_killed_is_named_within_seconds(shoal, tmp_path):
    command = [shoal.path, "train", "recipes/deepfm.toml", *SMALL, "-n", "2", "--ps.servers=2"]
    command += ["--ps.copies=1"]
    command += ["--training.steps=100000", f"--job.dump_folder={tmp_path}"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while "step:" not in line_of(run):
            pass
        servers = servers_below(run.pid)
        assert len(servers) == 2
        begin = time.monotonic()
        os.kill(servers[1], signal.SIGKILL)
        _, errors = run.communicate(timeout=30)
        assert time.monotonic() - begin < 10
        assert run.returncode == 1
        assert re.search(r"shoal run: server [01]: killed by signal 9 \(Killed\)", errors)
    finally:
        run.kill()
