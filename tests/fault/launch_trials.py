#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails a random rank of a job at a random step, many times, and checks how each job ends.

tests/fault/launch_trials.py 200 [SEED]; prints a line for each trial that is not as it should be, and a table
of how long they took. Processes, sockets and /dev/shm are compared before and after.
"""

import collections
import os
import pathlib
import random
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal")).resolve()
LIMIT = 2  # seconds that a rank waits for others
START = 3  # seconds that five processes with LibTorch need on two cores
FAULTS = dict.fromkeys(["kill", "segfault", "exit", "exception", "leave", "skip", "count"], START + 5)
FAULTS["stop"] = START + LIMIT + 5  # within which each job has to end, its start included


def left_behind():
    shoal = [
        p.name
        for p in pathlib.Path("/proc").iterdir()
        if p.name.isdigit() and "example_ranks" in (p / "cmdline").read_text(errors="replace")
    ]
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout
    own = [line for line in listening.splitlines() if "example_ranks" in line]
    return sorted(shoal), sorted(own), sorted(os.listdir("/dev/shm"))


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


def main():
    trials, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6)
    dice = random.Random(seed)
    before, wrong, times = left_behind(), 0, collections.defaultdict(list)
    for number in range(trials):
        command, fault, seconds, right, errors = trial(dice)
        times[fault].append(seconds)
        if not right or seconds > FAULTS[fault]:
            wrong += 1
            print(
                f"trial {number}: {command}: {seconds:.1f} s, {'named' if right else 'not named'}\n{errors}"
            )
    for fault, seconds in sorted(times.items()):
        print(f"{fault:10} {len(seconds):4} trials, {max(seconds):.2f} s at most, limit {FAULTS[fault]} s")
    after = left_behind()
    if after != before:
        print(f"left behind: {after}, before: {before}")
    print(
        f"{trials} trials, seed {seed}: {wrong} wrong, {'something' if after != before else 'nothing'} left"
    )
    sys.exit(bool(wrong) or after != before)


if __name__ == "__main__":
    main()
