# SPDX-License-Identifier: Apache-2.0
"""One rank of test_op_db.py's job: each N-th of PyTorch's operators, N the first argument, in a step of all ranks with a
batch that they have alike; equal to PyTorch, or refused. N = 1 is all of them."""

import functools
import sys

import op_db
import torch

import shoal


def replicated(module):
    return shoal.Parallelism(replicated_inputs=[str(place) for place in range(len(module.given))], limit=20)


def main():
    every = int(sys.argv[1])
    table = op_db.operators()
    counts = dict.fromkeys(("equal", "refused", "none", "wrong", "error"), 0)
    for name in sorted(table)[::every]:
        verdicts = op_db.verdicts_of_operator(
            table[name], 1, functools.partial(op_db.step, parallelism=replicated)
        )
        worst = op_db.summary(verdicts)
        counts[worst.split(":")[0]] += 1
        if worst.startswith(("wrong", "error", "refused")) and shoal.rank() == 0:
            print(f"{name}: {worst}"[:300], flush=True)
    if shoal.rank() == 0:
        print(" ".join(f"{kind}={count}" for kind, count in counts.items()), flush=True)


torch.set_num_threads(1)
main()
