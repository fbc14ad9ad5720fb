# SPDX-License-Identifier: Apache-2.0
"""Bags of a table: prints losses and rows of a few steps, of one process or of ranks with servers."""

import sys

import torch
from torch import nn

import shoal

IDS, WIDTH, BATCH = 30, 4, 6


class Bags(nn.Module):
    """Bags of one table: a sum with weights, two more, and a maximum over bags of different lengths."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(IDS, WIDTH, mode="sum", padding_idx=0, dtype=torch.float64)
        self.share = nn.Linear(1, 1, dtype=torch.float64)

    def forward(self, ids, weights, offsets):
        weights = self.share(weights.unsqueeze(2)).squeeze(2)
        mean = nn.functional.embedding_bag(ids, self.bag.weight, mode="mean", padding_idx=0)
        plain = nn.functional.embedding_bag(ids, self.bag.weight, mode="sum")
        most = nn.functional.embedding_bag(ids.flatten(), self.bag.weight, offsets, mode="max", padding_idx=0)
        return self.bag(ids, per_sample_weights=weights) * mean + plain * most


def loss_of(model, batch):
    return model(*batch[:3]).square().mean() + batch[3].mean()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 8, (BATCH, 5), generator=generator)
    ids[0] = 0  # padding alone
    weights = torch.rand(BATCH, 5, generator=generator, dtype=torch.float64)
    return ids, weights, torch.tensor([0, 4, 9, 9, 20, 28]), torch.arange(BATCH, dtype=torch.float64)


def trained(model, **options):
    """Losses of four steps and an evaluation, and rows, of whatever trains it."""
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    parallelism = shoal.Parallelism()
    trainer = shoal.Trainer(model, optimizer, loss_of, parallelism=parallelism, **options)
    share = shoal.samples_of(BATCH, parallelism)
    part = [tuple(tensor[share] for tensor in batch(step)) for step in range(5)]
    losses = [trainer.step(each).loss for each in part[:4]] + [trainer.evaluate(part[4]).loss]
    return losses, trainer


def made():
    torch.manual_seed(1)
    return Bags()


def numbers_in_table():
    """Losses, rows, the other parameter; how many rows there are, and how many are clicked too seldom."""
    table = shoal.Table("bag.weight", scored=True, show_weight=0.0, min_score=60.0, clicks="3")
    losses, trainer = trained(made(), tables=table)
    rows = trainer.rows("bag.weight", torch.arange(8)).flatten().tolist()
    ended = trainer.end_day(1).get("bag.weight", {"rows": 0, "low_score": 0})  # the first rank has it
    seen = [ended["rows"], ended["low_score"]]
    return [*losses, *rows, *trainer.model.share.weight.flatten().tolist(), *seen]


def main():
    numbers = numbers_in_table()
    if shoal.rank() == 0:
        print(*numbers)


if __name__ == "__main__":
    sys.exit(main())
