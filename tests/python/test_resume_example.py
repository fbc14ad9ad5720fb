# SPDX-License-Identifier: Apache-2.0
"""examples/resume.cpp: killed at any moment and started again, it ends with the bits of one that was not."""

import os
import pathlib
import random
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal")).resolve().parent
STEPS = "2000"


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(tmp_path):
    program = BUILD / "example_resume"
    whole = subprocess.run([program, tmp_path / "whole", STEPS], capture_output=True, text=True, timeout=120)
    assert whole.returncode == 0, whole.stderr
    random.seed(5)
    resumed = 0
    for _ in range(5):
        run = subprocess.Popen([program, tmp_path / "killed", STEPS], stdout=subprocess.PIPE, text=True)
        lines = [run.stdout.readline() for _ in range(random.randrange(3, 15))]
        resumed += lines[0].startswith("goes on from step ")
        run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
    last = subprocess.run([program, tmp_path / "killed", STEPS], capture_output=True, text=True, timeout=120)
    assert resumed >= 3
    assert last.stdout.startswith("goes on from step ")
    assert last.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]
    assert b"".join(path.read_bytes() for path in (tmp_path / "whole/tb").iterdir()).count(b"loss") == 100
    assert b"".join(path.read_bytes() for path in (tmp_path / "killed/tb").iterdir()).count(b"loss") >= 100
