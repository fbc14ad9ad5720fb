# SPDX-License-Identifier: Apache-2.0
"""Trains in a precision, as the one device of test_precision.py or as a rank of its job, which is to do the
same up to roundings: `precision_on_ranks.py bfloat16 LOSSES`, those of the one device. With `mixed` after
them rank 1 has a processor without instructions for it: all ranks have to emulate, or their graphs differ."""

import json
import os
import sys

import families
import torch

import shoal

DEGREES = (
    {"replicate": 2},
    {"shard": 2, "zero_stage": 1},
    {"shard": 2},
    {"shard": 2, "recompute": "full"},
    {"tensor": 2},
    {"pipeline": 2},
)


HEAVY = (3, 4, 11)  # steps of float16 that overflow, whatever the scale


def loss_of(model, batch):
    weight = batch["weight"].mean()
    return model(**{name: item for name, item in batch.items() if name != "weight"}).loss * weight


def trained(model, batch, precision, **degrees):
    parallelism = shoal.Parallelism(precision=precision, **degrees)
    trainer = shoal.Trainer(
        model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss_of, parallelism=parallelism
    )
    rows = shoal.samples_of(4, parallelism)
    losses, skipped = [], []
    for step in range(20):
        weight = torch.ones(4)
        if precision == "float16" and step in HEAVY:
            weight[step % 4] = 1e30
        result = trainer.step({name: item[rows] for name, item in {**batch, "weight": weight}.items()})
        (skipped if result.skipped else losses).append(step if result.skipped else result.loss)
    assert skipped == list(HEAVY if precision == "float16" else ()), skipped
    trainer.materialize()
    assert {item.dtype for item in model.state_dict().values() if item.is_floating_point()} == {torch.float32}
    return losses


def prepared():
    torch.manual_seed(0)
    model, batch = families.gpt2()
    return model, {name: torch.cat([item, item.flip(0)])[:4] for name, item in batch.items()}


if __name__ == "__main__":
    is_mixed = "mixed" in sys.argv
    if is_mixed and os.environ["RANK"] == "1" and "ONEDNN_MAX_CPU_ISA" not in os.environ:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"  # read once, when the process begins
        os.execv(sys.executable, [sys.executable, *sys.argv])
    precision, expected = sys.argv[1], json.loads(sys.argv[2])
    for degrees in DEGREES[:1] if is_mixed else DEGREES:
        model, batch = prepared()
        losses = trained(model, batch, precision, **degrees)
        for ours, alone in zip(losses, expected, strict=True):
            assert abs(ours - alone) < 0.005 * alone, (degrees, losses, expected)
    print("as one device", flush=True)
