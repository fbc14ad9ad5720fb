# SPDX-License-Identifier: Apache-2.0
"""Bags of a table: prints losses and rows of a few steps, of one process or of ranks with servers."""

import sys

import torch
from torch import nn

import shoal

IDS, WIDTH, BATCH = 30, 4, 6


class Bags(nn.Module):
    """Three bags of one table: a sum, with weights of samples, and a mean without what is padding."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(IDS, WIDTH, mode="sum", padding_idx=0, dtype=torch.float64)
        self.share = nn.Linear(1, 1, dtype=torch.float64)

    def forward(self, ids, weights):
        weights = self.share(weights.unsqueeze(2)).squeeze(2)
        mean = nn.functional.embedding_bag(ids, self.bag.weight, mode="mean", padding_idx=0)
        plain = nn.functional.embedding_bag(ids, self.bag.weight, mode="sum")
        return self.bag(ids, per_sample_weights=weights) * mean + plain


def loss_of(model, batch):
    ids, weights = batch
    return model(ids, weights).square().mean()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 8, (BATCH, 5), generator=generator)
    ids[0] = 0  # padding alone
    return ids, torch.rand(BATCH, 5, generator=generator, dtype=torch.float64)


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


def main():
    losses, trainer = trained(made(), tables=shoal.Table("bag.weight"))
    rows = trainer.rows("bag.weight", torch.arange(8)).flatten().tolist()
    if shoal.rank() == 0:
        print(*losses, *rows, *trainer.model.share.weight.flatten().tolist())


if __name__ == "__main__":
    sys.exit(main())
