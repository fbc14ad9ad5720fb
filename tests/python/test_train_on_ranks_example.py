# SPDX-License-Identifier: Apache-2.0
"""examples/train_on_ranks.cpp: ranks have the losses of one, and go on from their checkpoint after a kill."""

import os
import pathlib
import re
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal")).resolve()
PROGRAM = COMMAND.parent / "example_train_on_ranks"
TWO = [COMMAND, "run", "-n", "2", PROGRAM]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_of(text):
    return re.findall(r"step (\d+) loss (\S+), held out (\S+)", text)


def test_ranks_have_the_losses_of_one_and_go_on_after_a_kill(tmp_path):
    one, two = lines_of(run(PROGRAM)), run(*TWO, tmp_path / "whole")
    assert "2 ranks over shared memory" in two
    assert len(one) == 3
    for (step, *ours), (other, *theirs) in zip(lines_of(two), one, strict=True):
        assert step == other
        assert all(abs(float(a) - float(b)) < 1e-5 for a, b in zip(ours, theirs, strict=True))

    killed = subprocess.Popen(
        [str(word) for word in [*TWO, tmp_path / "killed", 100_000]], stdout=subprocess.PIPE, text=True
    )
    assert any("step 60 " in line for line in killed.stdout)  # reads until then
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    again = run(PROGRAM, tmp_path / "killed", 2000)  # on one rank
    assert int(re.search(r"goes on from step (\d+)", again)[1]) >= 20
    assert "at step 2000: " in again
    assert lines_of(run(*TWO, tmp_path / "killed", 2040))[-1][0] == "2040"


def test_a_trainer_without_parallelism_on_several_ranks_warns(tmp_path):
    done = subprocess.run(
        [str(COMMAND), "run", "-n", "2", str(COMMAND.parent / "example_resume"), str(tmp_path / "r"), "1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr.count("a Trainer without parallelism trains alone on each of them") == 1, done.stderr
