# SPDX-License-Identifier: Apache-2.0
"""Waits for processes that end, and what runs."""

import pathlib
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


def running(word):
    """The processes whose command line has it."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and str(word).encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            pass  # it has ended
    return found


def rank_of(word, rank):
    """The process among them that is this rank."""
    for process in running(word):
        if f"RANK={rank}".encode() in pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            return process
    raise AssertionError(f"no process with {word} is rank {rank}")
