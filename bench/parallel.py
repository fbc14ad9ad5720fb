#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step on several ranks of this host: Shoal against PyTorch's DDP and FSDP2 on Gloo, in turns.

    .venv/bin/python bench/parallel.py [SHAPE …] [--preset release] [--rounds 20] [--only NAMES] [--profile]
    .venv/bin/python bench/parallel.py gpt_30m --microbatches 8   a stage a rank, against PyTorch's pipelining

SHAPE is a GPT of bench/shapes.toml; its batch is that of one rank. Ranks are processes of one thread, each on
a core of its own, and all wait at a pipe while it is not their turn; a step takes as long as on the slowest
rank. A line has the median of the ratios to the best of the peers with its 95 % interval, by time and by CPU
time, then the medians, the shortest (of a machine that others use, the one to look at), and the most memory a
rank had above what it had before there was a model; pages that both have count half in each. Of Shoal also
the most that all ranks together had in tensors and communicators.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
OURS = ["data_parallel", "zero1", "zero2", "zero3"]
PEERS = ["ddp", "fsdp2", "fsdp2_kept"]
STAGED = ["pipeline_1f1b", "pipeline_gpipe"]
STAGED_PEERS = ["torch_1f1b", "torch_gpipe"]


class Group:
    """The ranks of one contender."""

    def __init__(self, name, shape, ranks, preset):
        self.name = name
        self.turns = []
        self.loss = None  # after the first steps
        store = tempfile.mktemp(prefix="bench_parallel_")
        if name in PEERS + STAGED_PEERS:
            command = [sys.executable, str(ROOT / "bench/parallel_torch.py")]
        else:
            command = [str(ROOT / "build" / preset / "bench/parallel")]
        cores = sorted(os.sched_getaffinity(0))
        self.processes = [
            subprocess.Popen(
                [*command, name, json.dumps(shape)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda rank=rank: os.sched_setaffinity(0, {cores[rank % len(cores)]}),
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "BENCH_STORE": f"file://{store}",
                },
            )
            for rank in range(ranks)
        ]

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
            "bytes": max(answer["bytes"] for answer in answers),
            "held": sum(answer.get("held", 0) for answer in answers),
            "loss": answers[0]["loss"],
        }

    def of(self, what):
        return [turn[what] for turn in self.turns]

    def end(self):
        for process in self.processes:
            try:
                process.stdin.close()
                process.wait(timeout=20)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                process.kill()
                process.wait()


def interval(values):
    """The median, and where it lies with 95 % by order statistics."""
    values = sorted(values)
    count = len(values)
    half = 0.98 * count**0.5  # 1.96 standard deviations of a binomial's half
    return (
        values[count // 2],
        values[max(0, round(count / 2 - half) - 1)],
        values[min(count - 1, round(count / 2 + half))],
    )


def ratios(group, best, what):
    pairs = zip(group.of(what), best.of(what), strict=True)
    return "{:.3f} [{:.3f}, {:.3f}]".format(*interval([ours / theirs for ours, theirs in pairs]))


def median(values):
    return interval(values)[0]


def compare(name, shape, arguments):
    groups = []
    try:
        for contender in arguments.only or (
            STAGED + STAGED_PEERS if arguments.microbatches else OURS + PEERS
        ):
            group = Group(contender, shape, arguments.ranks, arguments.preset)
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
            print(
                f"{name:9} {group.name:14} {ratios(group, best, 'seconds')} of {best.name}'s time, "
                f"{ratios(group, thrifty, 'cpu')} of {thrifty.name}'s CPU time; "
                f"{median(group.of('seconds')) * 1e3:.2f} ms, "
                f"at least {min(group.of('seconds')) * 1e3:.2f} ms, "
                f"CPU {median(group.of('cpu')) * 1e3:.2f} ms, "
                f"{max(group.of('bytes')) / 2**20:.1f} MiB, "
                + (f"{held / 2**20:.0f} MiB of tensors, " if (held := max(group.of("held"))) else "")
                + f"{len(group.turns)} rounds",
                flush=True,
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
    parser.add_argument(
        "--microbatches", type=int, default=0, help="pipelines, of so many of the shape's batch"
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help="contenders: " + ", ".join(OURS + PEERS + STAGED + STAGED_PEERS),
    )
    parser.add_argument(
        "--profile", action="store_true", help="where Shoal's time goes, by op; costs a little"
    )
    arguments = parser.parse_args()
    shapes = tomllib.loads((ROOT / "bench/shapes.toml").read_text())
    for name in arguments.shapes or ["tiny_gpt", "gpt_30m"]:
        shape = shapes[name] | ({"trace": True} if arguments.profile else {})
        if arguments.microbatches:
            shape |= {
                "microbatches": arguments.microbatches,
                "batch": shape["batch"] * arguments.microbatches,
            }
        compare(name, shape, arguments)


if __name__ == "__main__":
    main()
