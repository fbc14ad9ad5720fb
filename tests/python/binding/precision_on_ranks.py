# SPDX-License-Identifier: Apache-2.0
"""Trains in bfloat16, as the one device of test_precision.py or as a rank of its job, which is to do the same
up to roundings: `precision_on_ranks.py LOSSES`, those of the one device."""

import json
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


def loss_of(model, batch):
    return model(**batch).loss


def trained(model, batch, parallelism):
    trainer = shoal.Trainer(
        model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss_of, parallelism=parallelism
    )
    rows = shoal.samples_of(4, parallelism)
    losses = [trainer.step({name: item[rows] for name, item in batch.items()}).loss for _ in range(20)]
    trainer.materialize()
    assert {item.dtype for item in model.state_dict().values() if item.is_floating_point()} == {torch.float32}
    return losses


def prepared():
    torch.manual_seed(0)
    model, batch = families.gpt2()
    return model, {name: torch.cat([item, item.flip(0)])[:4] for name, item in batch.items()}


if __name__ == "__main__":
    expected = json.loads(sys.argv[1])
    for degrees in DEGREES:
        model, batch = prepared()
        losses = trained(model, batch, shoal.Parallelism(precision="bfloat16", **degrees))
        for ours, alone in zip(losses, expected, strict=True):
            assert abs(ours - alone) < 0.005 * alone, (degrees, losses, expected)
    print("as one device", flush=True)
