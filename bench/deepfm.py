# SPDX-License-Identifier: Apache-2.0
"""DeepFM by `shoal train` with servers, beside plain PyTorch in one process (deepfm_torch.py), in turns.

.venv/bin/python bench/deepfm.py [--pairs 9] [--batch 2048] [--ranks 1] [--servers 1] [--mode sync]

Both have 8 factors an id, data in memory, and the processor to themselves in their turn. Prints samples a
second of each and the median of the ratios, with the interval in which the true median is with 95 %.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from paired import interval

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHOAL = os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal")


def of_shoal(options, folder):
    steps = options.steps
    command = [SHOAL, "train", "recipes/deepfm.toml", "-n", options.ranks]
    command += [f"--ps.servers={options.servers}", f"--ps.mode={options.mode}", "--model.factors=8"]
    command += ["--dataset.in_memory=true", "--dataset.held_out=2048", "--validation.freq=0"]
    command += [f"--dataset.samples={200 * options.batch}", f"--training.steps={steps}"]
    command += [f"--training.local_batch_size={options.batch // options.ranks}"]
    command += [f"--metrics.log_freq={steps}", f"--job.dump_folder={folder}"]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    command = [str(word) for word in command]
    output = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    # The line of the first step has the start; this one has all others.
    return float(re.search(rf"step: *{steps} .*tps: ([\d,]+)", output)[1].replace(",", ""))


def of_torch(options):
    command = [sys.executable, "bench/deepfm_torch.py", str(options.batch), str(options.seconds)]
    # Else its threads spin at the end of each operation, and on a busy machine most of its speed is lost.
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
    command.append(str(options.cores))
    output = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    return float(re.search(r"([\d,]+) samples/s", output)[1].replace(",", ""))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="sync")
    for name, value in {"pairs": 9, "batch": 2048, "ranks": 1, "servers": 1, "steps": 400}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"seconds": 5, "threads": 1, "cores": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(options.pairs):
            torch = of_torch(options)
            shoal = of_shoal(options, f"{folder}/{pair}")
            ratios.append(shoal / torch)
            print(
                f"pair {pair}: shoal {shoal:,.0f}, torch {torch:,.0f} samples/s, {ratios[-1]:.2f}", flush=True
            )
    middle, low, high = interval(ratios)
    how = f"batch {options.batch}, {options.ranks} ranks, {options.servers} servers, {options.mode}"
    print(
        f"deepfm: {how}: {middle:.2f} of PyTorch's samples a second "
        f"({low:.2f} to {high:.2f}), {len(ratios)} pairs"
    )


if __name__ == "__main__":
    main()
