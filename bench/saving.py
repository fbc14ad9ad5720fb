# SPDX-License-Identifier: Apache-2.0
"""How fast DeepFM trains while all rows of its table are being saved, beside how fast it trains else.

.venv/bin/python bench/saving.py [--saves 7] [--batch 2048] [--ranks 1] [--servers 1] [--warm 60]

In one run, `shoal ps save` asks the job for its rows; then it is left alone for as long as that took. Prints
of each save its bytes a second, samples a second meanwhile, and those before and after it.
"""

import argparse
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time

from deepfm import ROOT, SHOAL
from paired import interval

LINE = re.compile(r"step: *([\d,]+) .*tps: ")


class Job:
    """A training run, and when each of its lines came."""

    def __init__(self, options, folder):
        self.batch, self.lines = options.batch, []
        command = [SHOAL, "train", "recipes/deepfm.toml", "-n", options.ranks]
        command += [f"--ps.servers={options.servers}", "--model.factors=8", "--validation.freq=0"]
        command += ["--dataset.in_memory=true", "--dataset.held_out=2048"]
        command += [f"--dataset.samples={options.samples}", "--training.steps=10000000"]
        command += [f"--training.local_batch_size={options.batch // options.ranks}"]
        command += ["--metrics.log_freq=5", f"--job.dump_folder={folder}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        words = [str(word) for word in command]
        self.process = subprocess.Popen(words, cwd=ROOT, env=environment, **pipes)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            if found := LINE.search(line):
                self.lines.append((time.monotonic(), int(found[1].replace(",", ""))))
            else:
                print(line, end="", flush=True)

    def rate(self, begin, end):
        """Samples a second between two moments."""
        inside = [line for line in self.lines if begin <= line[0] <= end]
        if len(inside) < 2:
            raise SystemExit("bench/saving.py: too few lines meanwhile: a larger --warm, for a longer save")
        (first, from_step), (last, to_step) = inside[0], inside[-1]
        return (to_step - from_step) * self.batch / (last - first)

    def end(self):
        self.process.terminate()
        self.reader.join(timeout=60)
        self.process.wait(timeout=60)


def main():
    parser = argparse.ArgumentParser()
    for name, value in {"saves": 7, "batch": 2048, "ranks": 1, "servers": 1, "samples": 400_000}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--warm", type=float, default=60, help="seconds of training before the first save")
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, f"{folder}/job")
        try:
            while len(job.lines) < 3:
                if job.process.poll() is not None:
                    raise SystemExit(f"bench/saving.py: training ended with {job.process.returncode}")
                time.sleep(0.1)
            time.sleep(options.warm)
            before = time.monotonic()
            time.sleep(5)
            for save in range(options.saves):
                begin = time.monotonic()
                words = [str(SHOAL), "ps", "save", f"{folder}/job", f"{folder}/{save}"]
                said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
                end = time.monotonic()
                time.sleep(max(5, end - begin))
                after = time.monotonic()
                beside = (job.rate(before, begin) + job.rate(end, after)) / 2
                meanwhile = job.rate(begin, end)
                ratios.append(meanwhile / beside)
                bytes_ = sum(file.stat().st_size for file in pathlib.Path(f"{folder}/{save}").rglob("*.*"))
                print(
                    f"save {save}: {said.strip()}; {bytes_ / 1e6:.0f} MB in {end - begin:.1f} s", flush=True
                )
                print(f"  {meanwhile:,.0f} samples/s meanwhile, {beside:,.0f} beside it, {ratios[-1]:.2f}")
                before = end
        finally:
            job.end()
    middle, low, high = interval(ratios)
    how = f"batch {options.batch}, {options.ranks} ranks, {options.servers} servers, {len(ratios)} saves"
    print(f"saving: {how}: {middle:.2f} of the rate ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
