# SPDX-License-Identifier: Apache-2.0
"""One rank of test_bags_in_tables.py's job: bags of different lengths, of which each rank has a part."""

import torch
from conftest import same
from torch import nn

import shoal

IDS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])
OFFSETS = torch.tensor([0, 2, 6, 11])  # counted through the ids of all ranks


def trainer_of(**options):
    torch.manual_seed(3)
    bag = nn.EmbeddingBag(10, 4, mode="max", padding_idx=5, dtype=torch.float64)
    sgd = torch.optim.SGD(bag.parameters(), lr=0.1)
    loss = lambda bag, batch: bag(*batch).square().sum(1).mean()  # noqa: E731
    return shoal.Trainer(bag, sgd, loss, **options)


def values_of(trainer, batch):
    losses = [trainer.step(batch).loss for _ in range(3)]
    return {"losses": torch.tensor(losses)} | trainer.state_dict()["model"]


wanted = values_of(trainer_of(), (IDS, OFFSETS))
parallelism = shoal.Parallelism()
rank, ids, bags = (
    shoal.rank(),
    shoal.samples_of(len(IDS), parallelism),
    shoal.samples_of(len(OFFSETS), parallelism),
)
same(values_of(trainer_of(parallelism=parallelism), (IDS[ids], OFFSETS[bags])), wanted, 1e-12, "parts:")
if rank == 0:
    print("equal")
try:
    trainer_of(parallelism=parallelism).step((IDS[ids], torch.tensor([0, 4])))
except shoal.InvalidInput as error:
    print(error)
except shoal.Error:
    pass  # the other rank has left
