# SPDX-License-Identifier: Apache-2.0
"""EmbeddingBags of a PyTorch model whose rows are in tables."""

import os
import subprocess
import sys

import pytest
import tables_on_ranks
import torch
from built import BUILD
from test_parallel import run_ranks
from torch import nn

import shoal

IDS, WIDTH = 40, 4


def numbers_of_bags(losses, weight, share):
    return [*losses, *weight[:8].flatten().tolist(), *share.flatten().tolist()]


def test_bags_of_one_length_are_tables_too(tmp_path):
    dense = tables_on_ranks.made()
    losses, _ = tables_on_ranks.trained(dense)
    wanted = numbers_of_bags(losses, dense.bag.weight, dense.share.weight)
    *got, rows, low = tables_on_ranks.numbers_in_table()
    assert got == pytest.approx(wanted, rel=1e-11, abs=1e-13)
    assert 0 < low < rows
    wanted += [rows, low]
    command = [BUILD / "shoal", "run", "-n", 2, "--servers=2", "--limit=60", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python"), "OMP_NUM_THREADS": "1"}
    command = [str(word) for word in [*command, tables_on_ranks.__file__]]
    result = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-3000:]
    said = result.stdout.removeprefix("[0] ").split()
    assert [float(number) for number in said] == pytest.approx(wanted, rel=1e-11, abs=1e-13)


def bag_of(mode, **options):
    torch.manual_seed(3)
    return nn.EmbeddingBag(IDS, WIDTH, mode=mode, dtype=torch.float64, **options)


def squares(bag, batch):
    return bag(*batch).square().sum()


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
def test_bags_of_different_lengths_are_read_over_their_rows(mode, padding):
    ours, theirs = (bag_of("sum" if mode == "weighted" else mode, padding_idx=padding) for _ in range(2))
    trainer = shoal.Trainer(
        ours, torch.optim.SGD(ours.parameters(), lr=0.1), squares, tables=shoal.Table("weight")
    )
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for step in range(6):
        count = 5 + step // 2
        ids, offsets = torch.randint(IDS, (count,)), torch.tensor([0, 1 + step % 3, 4])
        ids[4:] = 2  # all of the last bag, and others as they are drawn
        batch = (
            (ids, offsets, torch.rand(count, dtype=torch.float64)) if mode == "weighted" else (ids, offsets)
        )
        optimizer.zero_grad()
        loss = squares(theirs, batch)
        loss.backward()
        optimizer.step()
        assert trainer.step(batch).loss == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(trainer.rows("weight"), theirs.weight.detach(), rtol=1e-12, atol=1e-12)


def test_bags_that_scale_gradients_are_refused():
    bag = bag_of("sum", scale_grad_by_freq=True)
    trainer = shoal.Trainer(
        bag, torch.optim.SGD(bag.parameters(), lr=0.1), squares, tables=shoal.Table("weight")
    )
    with pytest.raises(shoal.InvalidInput, match=r"EmbeddingBag .*\(scale_grad_by_freq\).* Remedy: "):
        trainer.step((torch.tensor([1, 2, 3, 4]), torch.tensor([0, 3])))


def clicked_loss(bag, batch):
    return (bag(batch["ids"], batch["offsets"]) * (1 + batch["clicked"][:, None])).square().sum()


def clicked_bags(mode, loss=clicked_loss, **options):
    bag = bag_of(mode, **options)
    table = shoal.Table(
        "weight",
        optimizer="sgd",
        lr=0.1,
        initial="normal",
        scored=True,
        show_weight=0.0,
        min_score=1.5,
        clicks="clicked",
    )
    return shoal.Trainer(bag, torch.optim.SGD(bag.parameters(), lr=0.1), loss, tables=table)


@pytest.mark.parametrize("options", [{}, {"padding_idx": 4}, {"include_last_offset": True}])
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_an_id_in_a_bag_is_clicked_as_its_sample(mode, options):
    trainer = clicked_bags(mode, **options)
    ids, offsets, clicks = [1, 2, 3, 2, 4], [0, 2, 2, 4], [1, 9, 0, 1]  # of the second bag there are none
    if "include_last_offset" in options:
        offsets.append(len(ids))
    for _ in range(2):
        trainer.step(
            {
                "ids": torch.tensor(ids),
                "offsets": torch.tensor(offsets),
                "clicked": torch.tensor(clicks).double(),
            }
        )
    every = torch.tensor([1, 2, 3, 4])
    before = trainer.rows("weight", every)
    ended = trainer.end_day(1)["weight"]  # 1: twice, 2: twice, 3: never, 4: twice, or it is padding
    assert (ended["rows"], ended["low_score"]) == (3 if "padding_idx" in options else 4, 1)
    stays = (trainer.rows("weight", every) == before).all(1)
    assert stays.tolist() == [True, True, False, True]


def test_clicks_that_are_not_of_bags_are_refused():
    with pytest.raises(shoal.InvalidInput, match=r"in 2 bags; wanted \[samples\] of each"):
        clicked_bags("sum").step(
            {"ids": torch.arange(4), "offsets": torch.tensor([0, 3]), "clicked": torch.ones(1).double()}
        )


def test_ranks_count_offsets_through_the_ids_of_all():
    done = run_ranks(2, "bags_on_ranks.py")
    assert "rank 0 equal" in done.stdout and "rank 1 equal" in done.stdout, done.stderr


class Scaled(nn.Module):
    """Weights of samples that are learned."""

    def __init__(self, table):
        super().__init__()
        self.bag, self.scale = table, nn.Parameter(torch.tensor(0.5))

    def forward(self, ids, offsets, weights):
        return self.bag(ids, offsets, weights * self.scale)


@pytest.mark.parametrize("padding", [None, 2])
def test_weights_of_samples_and_numbers_of_32_bits(padding):
    def made():
        torch.manual_seed(3)
        return Scaled(nn.EmbeddingBag(IDS, WIDTH, mode="sum", padding_idx=padding))

    ours, theirs = made(), made()
    trainer = shoal.Trainer(
        ours, torch.optim.SGD(ours.parameters(), lr=0.1), squares, tables=shoal.Table("bag.weight")
    )
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(4):
        ids, offsets = torch.randint(IDS, (7,), dtype=torch.int32), torch.tensor([0, 2, 2], dtype=torch.int32)
        ids[3] = 2
        batch = (ids, offsets, torch.rand(7))
        optimizer.zero_grad()
        loss = squares(theirs, batch)
        loss.backward()
        optimizer.step()
        assert trainer.step(batch).loss == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(trainer.rows("bag.weight"), theirs.bag.weight.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.scale.detach(), theirs.scale.detach(), rtol=1e-5, atol=1e-6)


def test_ids_in_bags_of_two_kinds_are_clicked_as_the_samples_of_one():
    def loss(bag, batch):
        second = nn.functional.embedding_bag(batch["ids"], bag.weight, batch["others"], mode="sum")
        first = bag(batch["ids"], batch["offsets"])
        return (first * second * batch["clicked"][:, None]).sum()

    trainer = clicked_bags("sum", loss)
    batch = {"ids": torch.arange(4), "offsets": torch.tensor([0, 3]), "others": torch.tensor([0, 1])}
    with pytest.raises(shoal.InvalidInput, match="the same ids are in bags of two kinds"):
        trainer.step(batch | {"clicked": torch.ones(2).double()})
