#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step pays for being followed, by processor time: Hugging Face's GPT-2, one thread.

    .venv/bin/python bench/watching.py [--preset release] [--steps 3000] [small|large]

The first line has the time of one look at all that the model depends on, and its share of a step; the second
what spot checks took after the first three, as the share of all steps since.
"""

import argparse
import itertools
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from python_step import ROOT, make


def measure(what, steps):
    import shoal

    model, batch, optimizer = make(what)
    calls = itertools.count()

    def loss(model, batch):
        next(calls)
        return model(**batch).loss

    trainer = shoal.Trainer(model, optimizer, loss, ignores=["loss_fn.calls"])
    plain, checked = [], []
    for step in range(steps):
        before, start = repr(calls), time.process_time()
        trainer.step(batch)
        spent = time.process_time() - start
        if step > 8:
            (plain if repr(calls) == before else checked).append(spent)
    median = statistics.median(plain)
    looks = 2000
    start = time.process_time()
    for _ in range(looks):
        trainer._look()
    look = (time.process_time() - start) / looks
    print(f"{what}: a look {look * 1e6:.1f} µs, {look / median:.2%} of a step of {median * 1e3:.2f} ms")
    extra = sum(spent - median for spent in checked)
    share = extra / sum(plain + checked)
    print(f"{what}: {len(checked)} spot checks in {steps} steps, {share:.2%} of their time", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="*", default=["small", "large"])
    parser.add_argument("--preset", default="release")
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "build" / arguments.preset / "python"))
    import torch

    torch.set_num_threads(1)
    for what in arguments.what:
        measure(what, arguments.steps)


if __name__ == "__main__":
    main()
