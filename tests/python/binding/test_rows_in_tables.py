# SPDX-License-Identifier: Apache-2.0
"""Parameters of a PyTorch model whose rows are in tables: in the process, and on servers of `shoal run`."""

import os
import re
import subprocess
import sys

import pytest
import torch
from built import BUILD, ROOT
from torch import nn

import shoal

EXAMPLE = str(ROOT / "examples/clicks.py")
IDS, WIDTH = 40, 4


class Net(nn.Module):
    def __init__(self, ids=IDS, dtype=torch.float64):
        super().__init__()
        self.emb = nn.Embedding(ids, WIDTH, dtype=dtype)
        self.out = nn.Linear(WIDTH, 1, dtype=dtype)

    def forward(self, ids):
        return self.out(self.emb(ids).sum(1).tanh()).squeeze(1)


def loss_of(model, batch):
    ids, wanted = batch
    return (model(ids) - wanted).square().mean()


def batch(step, ids=IDS):
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randint(0, ids, (6, 3), generator=generator),
        torch.randn(6, generator=generator, dtype=torch.float64),
    )


def made(optimizer=None, ids=IDS, **options):
    torch.manual_seed(1)
    model = Net(ids)
    optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    return model, shoal.Trainer(model, optimizer(model.parameters()), loss_of, **options)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_a_table_has_the_rows_that_the_parameter_would_have(kind):
    def optimizer(parameters):
        return kind(parameters, lr=0.1)

    dense, plain = made(optimizer)
    model, trainer = made(optimizer, tables=shoal.Table("emb.weight"))
    for step in range(6):
        if step == 3:  # schedules are followed
            for each in (plain, trainer):
                each.optimizer.param_groups[0]["lr"] = 0.03
        assert trainer.step(batch(step)).loss == pytest.approx(plain.step(batch(step)).loss, rel=1e-12)
    assert trainer.evaluate(batch(9)).loss == pytest.approx(plain.evaluate(batch(9)).loss, rel=1e-12)
    torch.testing.assert_close(trainer.rows("emb.weight"), dense.emb.weight.detach(), rtol=1e-11, atol=1e-13)
    some = torch.tensor([[3, 5], [3, 0]])
    assert torch.equal(trainer.rows("emb.weight", some), trainer.rows("emb.weight")[some])
    torch.testing.assert_close(model.out.weight, dense.out.weight, rtol=1e-11, atol=1e-13)
    assert id(model.emb.weight) not in [id(each) for each in trainer.optimizer.state]  # zeros would be a lie


def test_an_optimizer_that_was_used_is_not_a_tables():
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loss_of(model, batch(0)).backward()
    optimizer.step()
    with pytest.raises(shoal.InvalidInput, match="optimizer.state of emb.weight is that of updates before"):
        shoal.Trainer(model, optimizer, loss_of, tables=shoal.Table("emb.weight"))


def test_rows_have_an_optimizer_and_a_beginning_of_their_own():
    table = shoal.Table("*.weight", optimizer="ftrl", lr=0.1, eps=1, l1=0.001, initial="constant", scale=0.5)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(IDS, WIDTH))
    trainer = shoal.Trainer(
        model, loss_fn=lambda model, batch: model(batch).square().sum(), tables=[table], optimizer=None
    )
    assert torch.equal(trainer.rows("0.weight"), torch.full((IDS, WIDTH), 0.5))
    with pytest.raises(shoal.InvalidInput, match="there is no optimizer to step with"):
        trainer.step(torch.arange(3))


def test_parts_of_rows_have_optimizers_of_their_own():
    first = shoal.RowPart(1, optimizer="sgd", lr=1, initial="constant", scale=2)
    table = shoal.Table(
        "emb.weight",
        optimizer="sgd",
        lr=1e-30,
        initial="constant",
        scale=0.5,
        parts=[first, shoal.RowPart(3)],
    )
    model, trainer = made(tables=table)
    ids = torch.tensor([[1, 2, 3]])
    trainer.step((ids, torch.ones(1, dtype=torch.float64)))
    rows = trainer.rows("emb.weight", torch.arange(5))
    assert torch.equal(rows[[0, 4]], torch.tensor([[2, 0.5, 0.5, 0.5]] * 2).double())
    assert torch.all(rows[1:4, 0] != 2) and torch.all(rows[:, 1:] == 0.5)


def test_ids_without_a_bound_take_no_memory(tmp_path):
    torch.manual_seed(1)
    model = shoal.deferred_init(Net, 2**62)
    trainer = shoal.Trainer(
        model,
        torch.optim.Adam(model.out.parameters()),
        loss_of,
        tables=shoal.Table("emb.weight", optimizer="adam", lr=0.1, initial="uniform", scale=0.1),
    )
    ids, wanted = batch(0)
    ids = ids * 2**55 + 7
    losses = [trainer.step((ids, wanted)).loss for _ in range(5)]
    assert losses[-1] < losses[0]
    trainer.save(tmp_path)
    trainer.wait_for_saves()
    then = trainer.step((ids, wanted)).loss
    assert trainer.load(tmp_path) == ""
    assert trainer.step((ids, wanted)).loss == then
    assert trainer.rows("emb.weight", ids).abs().max() < 1
    with pytest.raises(RuntimeError, match="the rows of parameter emb.weight are in a table"):
        model.emb.weight.sum()


def clicked(clicks="clicked", scored=True):
    table = shoal.Table(
        "emb.weight",
        optimizer="sgd",
        lr=0.1,
        initial="normal",
        scored=scored,
        show_weight=0.0,
        min_score=1.5,
        clicks=clicks,
    )
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return shoal.Trainer(
        model, sgd, lambda model, batch: loss_of(model, (batch["ids"], batch["clicked"])), tables=table
    )


def samples(*clicks):
    return {"ids": torch.tensor([[1, 2], [3, 2], [2, 1]]), "clicked": torch.tensor(clicks).double()}


def test_rows_that_were_clicked_stay():
    trainer = clicked()
    trainer.step(samples(1, 1, 0))
    trainer.step(samples(0, 2, 0))
    ended = trainer.end_day(1)["emb.weight"]  # 1: once, 2: four times, 3: three times
    assert (ended["rows"], ended["low_score"]) == (3, 1)


def test_rows_of_a_slot_go_by_its_own_days():
    days = {"max_unseen_days": 3, "slot_days": {1: 1, 2: 0}, "slot_bits": 60}
    _, trainer = made(
        tables=shoal.Table("emb.weight", scored=True, initial="normal", optimizer="sgd", **days)
    )
    trainer.step(batch(0))
    rows = [len({id for id in batch(0)[0].flatten().tolist() if id // 8 == slot}) for slot in range(5)]
    assert rows[1] > 0 and rows[2] > 0
    went = [trainer.end_day(day)["emb.weight"]["unseen"] for day in (1, 2, 3, 4)]
    assert went == [0, rows[1], 0, rows[0] + rows[3] + rows[4]]


def test_clicks_that_cannot_be_are_refused_by_name():
    with pytest.raises(shoal.InvalidInput, match="rows have no score that these count for"):
        clicked(scored=False)
    with pytest.raises(shoal.InvalidInput, match='are input "what", which the step does not read; it reads'):
        clicked("what").step(samples(1, 0, 0))
    with pytest.raises(shoal.InvalidInput, match=r"are input ids of i64\[3, 2\], and its ids are"):
        clicked("ids").step(samples(1, 0, 0))
    trainer = clicked()
    with pytest.raises(shoal.InvalidInput, match="shows or clicks of key 2 are not numbers from 0 on"):
        trainer.step(samples(1, -1, 0))


def test_what_is_multiplied_and_convolved_is_in_tables_too(tmp_path):
    def made_model():
        torch.manual_seed(4)
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
        )
        return model.double()

    def mean_of(model, batch):
        return model(batch).square().mean()

    ours, theirs = made_model(), made_model()
    every = [shoal.Table(name) for name, _ in ours.named_parameters()]
    trainer = shoal.Trainer(ours, torch.optim.SGD(ours.parameters(), lr=0.1), mean_of, tables=every)
    plain = shoal.Trainer(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), mean_of)
    for step in range(4):
        batch = torch.randn(5, 2, 4, 4, dtype=torch.float64)
        assert trainer.step(batch).loss == pytest.approx(plain.step(batch).loss, rel=1e-12)
        if step == 1:
            trainer.save(tmp_path)
    trainer.materialize()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)
    trainer.load(tmp_path)
    assert trainer.rows("0.weight").shape == (3, 2, 3, 3)
    assert trainer.rows("0.weight", torch.tensor([1])).shape == (1, 18)


def test_rows_that_are_set_are_read_and_other_writes_are_refused():
    model, trainer = made(tables=shoal.Table("emb.weight"))
    trainer.step(batch(0))
    values = torch.ones(2, WIDTH, dtype=torch.float64)
    trainer.set_rows("emb.weight", torch.tensor([3, 7]), values)
    assert torch.equal(trainer.rows("emb.weight", torch.tensor([3, 7])), values)
    trainer.materialize()
    assert torch.equal(model.emb.weight[3].detach(), values[0])
    assert torch.equal(trainer.state_dict()["model"]["emb.weight"][7], values[0])
    trainer.step(batch(1))
    trainer.materialize()
    with torch.no_grad():
        model.emb.weight[3] = 2
    with pytest.raises(shoal.InvalidInput, match="was given values while its rows are in a table"):
        trainer.step(batch(2))


def test_what_a_table_cannot_do_is_refused_by_name():
    def refused(match, **options):
        with pytest.raises(shoal.InvalidInput, match=match):
            made(**options)[1].step(batch(0))

    refused('no parameter of the model is called "embed.weight"', tables=shoal.Table("embed.weight"))
    refused(r"a dict was given; give shoal.Table", tables={"emb.weight": "adagrad"})
    refused(r"a list with a str was given", tables=["emb.weight"])
    refused("clip_norm is 1", tables=shoal.Table("emb.weight"), clip_norm=1)
    refused('on_refusal is "eager"', tables=shoal.Table("emb.weight"), on_refusal="eager")
    refused("Adam", optimizer=torch.optim.Adam, tables=shoal.Table("emb.weight"))
    for match, arguments in [
        ('optimizer is "adagard"; give one of sgd, momentum', {"optimizer": "adagard"}),
        ("lr is 0.1, and no optimizer of rows is named", {"lr": 0.1}),
        ("lr is -1; it is a number of at least 0", {"optimizer": "sgd", "lr": -1}),
        ("scale is 1, and rows begin as the model's", {"scale": 1}),
        ("dtype is torch.int8", {"dtype": torch.int8}),
        ('admission is "never"', {"admission": "never"}),
    ]:
        with pytest.raises(shoal.InvalidInput, match=match):
            shoal.Table("emb.weight", **arguments)
    part = shoal.RowPart(4)
    with pytest.raises(shoal.InvalidInput, match="a RowPart of width 4 of emb.weight has no optimizer"):
        shoal.Table("emb.weight", initial="normal", parts=[part])
    with pytest.raises(shoal.InvalidInput, match="a RowPart of width 4 of emb.weight has no initial"):
        shoal.Table("emb.weight", optimizer="sgd", parts=[part])
    with pytest.raises(shoal.InvalidInput, match='memory is "lots"; it is a number above 0 with a unit'):
        shoal.Tables([], memory="lots", cold_folder="cold")
    with pytest.raises(shoal.InvalidInput, match="rows beyond it have nowhere to lie. Remedy: cold_folder"):
        shoal.Tables([], memory="8GiB")
    with pytest.raises(shoal.InvalidInput, match="rows go over the wire as f64; wanted f32 or bf16"):
        shoal.Tables([], wire_dtype=torch.float64)
    with pytest.raises(shoal.InvalidInput, match='mode is "later"; give one of sync, async, half_async, geo'):
        shoal.Tables(shoal.Table("emb.weight"), mode="later")
    trainer = made(tables=shoal.Table("emb.weight"))[1]
    with pytest.raises(shoal.InvalidInput, match=r"backward\(\) has nothing to say of parameters"):
        trainer.backward(batch(0))
    with pytest.raises(shoal.InvalidInput, match="there is no id 40"):
        trainer.step((torch.full((6, 3), IDS), batch(0)[1]))
    with pytest.raises(shoal.InvalidInput, match="out.weight"):
        trainer.rows("out.weight")


def run(*command, **options):
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(word) for word in command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


def numbers_in(result):
    assert result.returncode == 0, result.stderr[-3000:]
    return [float(number) for number in re.findall(r"-?\d+\.\d{5,}", result.stdout)]


def test_ranks_and_servers_of_a_script_learn_what_one_process_does(tmp_path):
    alone = numbers_in(run(sys.executable, EXAMPLE, 40, cwd=tmp_path))
    assert len(alone) == 3 + 4 and alone[2] < alone[0]
    shoal_run = [BUILD / "shoal", "run", "--limit=60"]
    script = [sys.executable, EXAMPLE, 40]
    two = run(*shoal_run, "-n", 2, "--servers=2", *script, cwd=tmp_path)
    assert numbers_in(two) == pytest.approx(alone, abs=2e-5)
    one = run(*shoal_run, "--servers=1", "--server-threads=2", *script, cwd=tmp_path)
    assert numbers_in(one) == alone


def test_ranks_without_servers_are_told_of_them(tmp_path):
    result = run(BUILD / "shoal", "run", "-n", 2, sys.executable, EXAMPLE, 2, cwd=tmp_path)
    assert result.returncode != 0
    assert "2 ranks share rows, which servers have" in result.stderr and "--servers=1" in result.stderr
    wrong = run(
        BUILD / "shoal", "run", "--servers=2", "--server-parts=1", sys.executable, EXAMPLE, cwd=tmp_path
    )
    assert wrong.returncode == 2 and "share 1 parts of the keys" in wrong.stderr
    nowhere = run(
        BUILD / "shoal", "run", "--servers=1", "--server-memory=8GiB", sys.executable, EXAMPLE, cwd=tmp_path
    )
    assert nowhere.returncode == 2 and "Remedy: --server-cold-folder or --job-folder" in nowhere.stderr
