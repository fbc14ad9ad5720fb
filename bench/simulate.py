#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How close shoal simulate comes to what training takes on this machine.

    python bench/simulate.py [--models NAME …] [--steps N]

Calibrates the machine for one rank and for two, trains each recipe alone, and on two ranks with data
parallel, ZeRO-3 and tensor parallel, and simulates the same. A line has the median of the seconds of a step
that was trained, what was simulated, and by how much that is off; then the mean of that, and for each model
Kendall's tau of its strategies on two ranks: 1 where they come in the same order, -1 the other way round.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODELS = ["mlp", "gpt", "llama", "bert", "t5", "vit", "resnet", "lstm"]
STRATEGIES = {
    "one rank": (1, []),
    "data parallel": (2, []),
    "ZeRO-3": (2, ["--parallelism.data_parallel_shard_degree=2"]),
    "tensor": (2, ["--parallelism.tensor_parallel_degree=2"]),
}
LEFT_OUT = 3  # of the steps: the first captures, and the machine gets warm


def run(*words):
    result = subprocess.run([str(word) for word in words], cwd=ROOT, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"bench/simulate.py: {' '.join(map(str, words))}: {result.stdout}{result.stderr}")
    return result.stdout


def trained(shoal, recipe, ranks, strategy, steps, folder):
    # As many samples a rank on both, so that one rank's step is no other problem.
    words = [shoal, "train", recipe, f"--job.dump_folder={folder}", f"--training.steps={steps}", *strategy]
    words += ["--lr_scheduler.warmup_steps=0", "--checkpoint.enable=false", "--validation.freq=0"]
    run(*words, *([f"--nproc-per-node={ranks}"] if ranks > 1 else []))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["seconds"] for line in lines[LEFT_OUT:] if "seconds" in line)


def simulated(shoal, recipe, ranks, strategy, cluster):
    said = run(shoal, "simulate", recipe, "-n", ranks, f"--cluster={cluster}", *strategy)
    return float(re.search(r"step ([\d.]+) ms", said)[1]) / 1e3


def kendall(pairs):
    signs = [(a[0] - b[0]) * (a[1] - b[1]) > 0 or -1 for a, b in itertools.combinations(pairs, 2)]
    return sum(signs) / len(signs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, help="of recipes/")
    parser.add_argument("--steps", type=int, default=15, help="of each training")
    arguments = parser.parse_args()
    if arguments.steps <= LEFT_OUT:
        parser.error(f"--steps is {arguments.steps}, and the first {LEFT_OUT} are left out")
    shoal = ROOT / os.environ.get("BUILD", "build/release") / "shoal"
    off, taus = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for ranks in (1, 2):
            print(
                run(shoal, "calibrate", f"--output={folder}/{ranks}.toml", f"--nproc-per-node={ranks}"),
                flush=True,
            )
        for model in arguments.models:
            recipe = f"recipes/{model}.toml"
            pairs = []
            for strategy, (ranks, words) in STRATEGIES.items():
                took = trained(shoal, recipe, ranks, words, arguments.steps, folder / f"{model}-{strategy}")
                said = simulated(shoal, recipe, ranks, words, folder / f"{ranks}.toml")
                off.append(abs(said - took) / took)
                if ranks > 1:
                    pairs.append((took, said))
                print(
                    f"{model:7} {strategy:14} trained {took * 1e3:8.2f} ms, simulated {said * 1e3:8.2f} ms, "
                    f"{100 * (said - took) / took:+6.1f} %",
                    flush=True,
                )
            taus.append(kendall(pairs))
            print(f"{model:7} tau {taus[-1]:.2f}", flush=True)
    error, tau = 100 * statistics.mean(off), statistics.mean(taus)
    print(f"mean error {error:.1f} %, tau {tau:.2f}, at least {min(taus):.2f}")


if __name__ == "__main__":
    main()
