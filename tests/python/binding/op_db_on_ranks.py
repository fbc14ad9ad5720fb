# SPDX-License-Identifier: Apache-2.0
"""One rank of test_op_db.py's job: PyTorch's operators, data parallel, each rank with the whole batch. Rank 0
prints a line for each operator that is neither equal nor without a gradient."""

import functools

import op_db

import shoal


def replicated(module):
    """Data parallel, and no input has a batch dimension."""
    return shoal.Parallelism(replicated_inputs=[str(i) for i in range(len(module.given))])


def main():
    counts = {}
    table = op_db.operators()
    step = functools.partial(op_db.step, parallelism=replicated)
    for name in sorted(table):
        found = op_db.summary(op_db.verdicts_of_operator(table[name], samples=1, step=step))
        kind = found.partition(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
        if shoal.rank() == 0 and kind not in ("equal", "none"):
            print(f"{name}\t{found.splitlines()[0]}", flush=True)
    if shoal.rank() == 0:
        print("counts", counts, flush=True)


main()
