# SPDX-License-Identifier: Apache-2.0
"""Waits of tests that end."""

import subprocess
import time


def until(is_there, *processes, seconds=60):
    """Returns when it is there. Fails where a process ends before, with what it said, or after so long."""
    end = time.monotonic() + seconds
    while not is_there():
        for process in processes:
            try:
                process.wait(timeout=0.002)
            except subprocess.TimeoutExpired:
                continue
            assert is_there(), (process.returncode, process.communicate(timeout=seconds))
        assert time.monotonic() < end, f"not there after {seconds} s"


def line_of(process):
    """The next one that it prints. Fails where it ends instead, with what it said."""
    line = process.stdout.readline()
    assert line, process.communicate(timeout=60)
    return line
