# SPDX-License-Identifier: Apache-2.0
"""A factorisation machine whose ids are any 62-bit numbers: its embedding has no memory, rows are in a table.

shoal run -n 2 --servers=2 examples/clicks.py     # ranks share the rows, which two servers have
python examples/clicks.py                         # the same losses: the table is in this process
"""

import sys

import torch
from torch import nn

import shoal

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
FIELDS, BATCH, WIDTH = 8, 256, 8


class FactorisationMachine(nn.Module):
    """Rendle, ICDM 2010: of each id a weight and a factor; factors of two ids of a sample meet by product."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(2**62, 1 + WIDTH)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, ids):
        rows = self.rows(ids)  # [batch, fields, 1 + width]
        weights, factors = rows[..., 0], rows[..., 1:]
        crossed = 0.5 * (factors.sum(1).square() - factors.square().sum(1)).sum(1)
        return self.bias + weights.sum(1) + crossed


def loss_of(model, batch):
    ids, clicks = batch
    return nn.functional.binary_cross_entropy_with_logits(model(ids), clicks)


def samples(step):
    """Ids of each field, a few of them often; what is clicked depends on their hashes."""
    generator = torch.Generator().manual_seed(step)
    ids = (torch.rand(BATCH, FIELDS, generator=generator).pow(6) * 1e4).long()
    ids = ids * FIELDS + torch.arange(FIELDS)
    liking = ((ids * 0x9E3779B97F4A7C15) >> 56).float() / 128  # of each id, from -1 to 1
    chance = torch.sigmoid(liking.sum(1))
    return ids, (torch.rand(BATCH, generator=generator) < chance).float()


def main():
    torch.manual_seed(0)
    model = shoal.deferred_init(FactorisationMachine)
    parallelism = shoal.Parallelism()
    trainer = shoal.Trainer(
        model,
        torch.optim.Adam([model.bias], lr=0.01),
        loss_of,
        parallelism=parallelism,
        tables=shoal.Table("rows.weight", optimizer="adagrad", lr=0.05, initial="normal", scale=0.01),
    )
    share = shoal.samples_of(BATCH, parallelism)
    for step in range(1, STEPS + 1):
        ids, clicks = samples(step)
        result = trainer.step((ids[share], clicks[share]))
        if shoal.rank() == 0 and (step == 1 or step % 20 == 0):
            print(f"step {step}: loss {result.loss:.9f}")
    rows = trainer.rows("rows.weight", torch.arange(4))
    if shoal.rank() == 0:
        print("weights of ids 0 to 3:", " ".join(f"{weight:.6f}" for weight in rows[:, 0]))


main()
