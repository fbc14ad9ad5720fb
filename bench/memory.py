#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What shoal says of a rank's memory before a run, beside what it takes: recipes x strategies, and limits.

    python bench/memory.py                    all recipes on 1 rank, DP, ZeRO-1, -2, -3 and tensor
    python bench/memory.py gpt llama          these alone
    python bench/memory.py --limits=30        random limits: each run stays below, or is refused
    python bench/memory.py --limits=40 --auto between the least that memory.auto says and what a free run
                                              takes: each run stays below; less than the least is refused

Each run is three steps with a validation between, on two ranks of one thread each. Prints said / was, and
ends with 1 where a run took more than was said, more than a tenth less, or more than its limit.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECIPES = ["bert", "dlrm", "gpt", "llama", "lstm", "mlp", "resnet", "t5", "vit"]
SHARDED = "-n 2 --parallelism.data_parallel_shard_degree=2 --zero.stage="
STRATEGIES = {
    "1 rank": "",
    "DP": "-n 2",
    "ZeRO-1": SHARDED + "1",
    "ZeRO-2": SHARDED + "2",
    "ZeRO-3": SHARDED + "3",
    "tensor": "-n 2 --parallelism.tensor_parallel_degree=2",
}
PLANS = {"gpt": "gpt2_tensor", "llama": "llama_tensor"}
# A tied table would have to be cut by words and by columns.
UNTIED = {"llama": ["--model.tie_word_embeddings=false"]}
SHORT = "--training.steps=3 --validation.freq=2 --validation.steps=1 --lr_scheduler.warmup_steps=0"


def words_of(recipe, strategy):
    """What a recipe is trained with on a strategy. Used by tests/python/cli/test_memory.py too."""
    words = STRATEGIES[strategy].split()
    if strategy == "tensor" and recipe in PLANS:
        words += [f"--parallelism.plan=recipes/plans/{PLANS[recipe]}.plan", *UNTIED.get(recipe, [])]
    return words


def train(recipe, strategy, folder, *more):
    """The completed process, and what it says of memory; None where it was refused."""
    (folder / "results.json").unlink(missing_ok=True)
    command = [
        os.environ.get("SHOAL_COMMAND", "bin/shoal"),
        "train",
        f"recipes/{recipe}.toml",
        *words_of(recipe, strategy),
        *SHORT.split(),
        f"--job.dump_folder={folder}",
        *more,
    ]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        return result, None
    return result, json.loads((folder / "results.json").read_text())["memory"]


def compare(recipe, strategy, folder):
    result, memory = train(recipe, strategy, folder)
    if memory is None:
        print(f"{recipe:8}{strategy:8} failed: {result.stderr.strip()[-300:]}")
        return False
    said, was = memory["predicted_bytes"], memory["peak_bytes"]
    print(
        f"{recipe:8}{strategy:8} said {said / 2**20:8.1f} MiB, was {was / 2**20:8.1f}: {said / was:.4f}"
        f"  process grew by {memory['proportional_bytes'] / 2**20:.1f} MiB",
        flush=True,
    )
    return was <= said <= 1.1 * was


AUTO = "--memory.auto=true"


def least_of(recipe, strategy, folder):
    """Of bytes that memory.auto can do with, as the refusal of fewer says it."""
    result, memory = train(recipe, strategy, folder, AUTO, "--memory.limit=1B")
    assert memory is None, "one byte is enough"
    return int(re.search(r"the least that a rank takes is (\d+) bytes", result.stderr)[1])


def chosen(recipe, strategy, folder, limit, least):
    """A run at a limit that memory.auto can keep, and the refusal of one just below the least."""
    result, memory = train(recipe, strategy, folder, AUTO, f"--memory.limit={limit}B")
    if memory is None:
        print(f"{recipe:8}{strategy:8} limit {limit}: failed: {result.stderr[-300:]}", flush=True)
        return False
    how = re.search(r"memory.auto: (.*)", result.stdout)[1]
    print(f"{recipe:8}{strategy:8} limit {limit}: took {memory['peak_bytes']}: {how}", flush=True)
    refused, none = train(recipe, strategy, folder, AUTO, f"--memory.limit={least - 1}B")
    return memory["peak_bytes"] <= limit and none is None and "MiB would do" in refused.stderr


def limited(recipe, strategy, folder, limit):
    result, memory = train(recipe, strategy, folder, f"--memory.limit={limit}B")
    if memory is None:
        refused = f"memory.limit is {limit}B" in result.stderr + result.stdout
        said = "refused" if refused else "failed: " + result.stderr[-300:]
        print(f"{recipe:8}{strategy:8} limit {limit}: {said}")
        return refused
    print(f"{recipe:8}{strategy:8} limit {limit}: took {memory['peak_bytes']}", flush=True)
    return memory["peak_bytes"] <= limit


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=RECIPES)
    parser.add_argument("--limits", type=int, default=0)
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    holds, kept = True, 0
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(recipe, strategy) for recipe in options.recipes for strategy in STRATEGIES]
        if not options.limits:
            for recipe, strategy in pairs:
                (pathlib.Path(folder) / recipe).mkdir(exist_ok=True)
                holds &= compare(recipe, strategy, pathlib.Path(folder) / recipe)
        drawn = random.Random(options.seed)
        said = {}
        for _ in range(options.limits):
            recipe, strategy = drawn.choice(pairs)
            out = pathlib.Path(folder) / recipe
            out.mkdir(exist_ok=True)
            if (recipe, strategy) not in said:
                said[recipe, strategy] = train(recipe, strategy, out)[1]["predicted_bytes"]
            if options.auto:
                least = least_of(recipe, strategy, out)
                limit = drawn.randint(least, max(least, said[recipe, strategy]))
                is_kept = chosen(recipe, strategy, out, limit, least)
            else:
                limit = round(said[recipe, strategy] * drawn.uniform(0.6, 1.4))
                is_kept = limited(recipe, strategy, out, limit)
            holds &= is_kept
            kept += is_kept
    if options.limits:
        print(f"seen: {kept} of {options.limits} limits kept")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
