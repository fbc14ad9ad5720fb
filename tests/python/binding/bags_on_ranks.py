# SPDX-License-Identifier: Apache-2.0
"""One rank of test_bags_in_tables.py's job: bags of different lengths, of which each rank has a part."""

import torch
from conftest import same
from torch import nn

import shoal

IDS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])
OFFSETS = torch.tensor([0, 2, 6, 11])  # counted through the ids of all ranks


def bags_of(bag, batch):
    ids, offsets = batch
    return bag(ids, offsets)


def bags_of_int32(bag, batch):
    return bag(batch[0], batch[1].int().long())


def trainer_of(bags=bags_of, **options):
    torch.manual_seed(3)
    bag = nn.EmbeddingBag(10, 4, mode="max", padding_idx=5, dtype=torch.float64)
    sgd = torch.optim.SGD(bag.parameters(), lr=0.1)

    def loss(bag, batch):
        return bags(bag, batch).square().sum(1).mean()

    return shoal.Trainer(bag, sgd, loss, **options)


def values_of(trainer, batch):
    losses = [trainer.step(batch).loss for _ in range(3)]
    return {"losses": torch.tensor(losses)} | trainer.state_dict()["model"]


def part_of(tensor):
    return tensor[shoal.samples_of(len(tensor), parallelism)]


def refusal_of(trainer, offsets):
    try:
        return trainer.step((part_of(IDS), offsets)).loss
    except shoal.InvalidInput as error:
        return str(error)


parallelism = shoal.Parallelism()
for offsets in (OFFSETS, torch.tensor([0, 0, 0, 5])):  # of the first rank all bags but the last may be empty
    wanted = values_of(trainer_of(), (IDS, offsets))
    trainer = trainer_of(parallelism=parallelism)
    same(values_of(trainer, (part_of(IDS), part_of(offsets))), wanted, 1e-12, "parts:")
for bags in (bags_of, bags_of_int32):
    assert "item 1 of the batch, offsets of the EmbeddingBag" in refusal_of(
        trainer_of(bags, parallelism=parallelism), torch.tensor([0, 4])
    )
refused = refusal_of(trainer, torch.tensor([0, 4]))
assert ", go down, as of a batch of each rank's own" in refused, refused
assert ", are 0 on each rank, as of" in refusal_of(trainer, torch.tensor([0]))
again = refusal_of(trainer, part_of(OFFSETS))  # all ranks refuse, and all go on
assert isinstance(again, float), again
print(f"rank {shoal.rank()} equal")
