# SPDX-License-Identifier: Apache-2.0
"""Trainer.save and load from Python: a run that goes on from a checkpoint ends with the bits of one that was
never stopped, options of the optimizer included."""

import pathlib

import pytest
import torch
from test_parallel import run_ranks
from torch import nn

import shoal


def make(seed=1, lr=0.01):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 4)
    ).double()
    groups = [{"params": model[0].parameters(), "lr": 2 * lr}, {"params": model[1:].parameters()}]
    optimizer = torch.optim.Adam(groups, lr=lr, betas=(0.8, 0.9))
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def batch_of(number):
    generator = torch.Generator().manual_seed(100 + number)
    return {
        "x": torch.randn(7, 6, generator=generator).double(),
        "y": torch.randint(4, (7,), generator=generator),
    }


def train(trainer, schedule, numbers):
    for number in numbers:
        trainer.step(batch_of(number))
        schedule.step()


def everything(trainer):
    state = trainer.state_dict()
    tensors = [*state["model"].values()]
    for own in state["optimizer"]["state"].values():
        tensors += own.values()
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    return tensors, rates, state["steps"], state["seed"]


def is_same(a, b):
    return len(a[0]) == len(b[0]) and all(map(torch.equal, a[0], b[0])) and a[1:] == b[1:]


def test_a_run_goes_on_to_the_bit(tmp_path):
    model, optimizer, schedule = make()
    whole = shoal.Trainer(model, optimizer, loss_of)
    train(whole, schedule, range(3))
    whole.save(tmp_path / "run", {"epoch": 1, "schedule": schedule.state_dict()})
    train(whole, schedule, range(3, 6))  # while a thread writes
    whole.wait_for_saves()

    model, optimizer, schedule = make(seed=2, lr=0.5)
    again = shoal.Trainer(model, optimizer, loss_of)
    note = again.load(tmp_path / "run")
    assert note["epoch"] == 1
    schedule.load_state_dict(note["schedule"])
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * 0.7**3)
    assert {int(own["step"]) for own in optimizer.state.values()} == {3}
    train(again, schedule, range(3, 6))
    assert is_same(everything(again), everything(whole))


@pytest.mark.parametrize(
    "kind", [None, torch.optim.RMSprop, lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9)]
)
def test_a_trainer_goes_back_to_what_it_saved(tmp_path, kind):
    model, optimizer, schedule = make()
    if kind is not None:
        optimizer = kind([{"params": model[0].parameters(), "lr": 0.02}, {"params": model[1:].parameters()}])
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    trainer = shoal.Trainer(model, optimizer, loss_of)
    trainer.save(str(tmp_path), ["before the first step"])
    train(trainer, schedule, range(2))
    first = everything(trainer)
    assert trainer.load(str(tmp_path)) == ["before the first step"]
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    assert trainer.optimizer.param_groups[1]["lr"] == 0.01
    train(trainer, schedule, range(2))
    assert is_same(everything(trainer), first)


def test_a_note_comes_back_as_it_was(tmp_path):
    model, optimizer, _ = make()
    trainer = shoal.Trainer(model, optimizer, loss_of)
    schedule = torch.optim.lr_scheduler.MultiStepLR(
        optimizer, [2, 3]
    )  # whose state has whole numbers as keys
    note = {"schedule": schedule.state_dict(), "shape": (3, [4, None]), "shoal.kind": "tuple", "best": -1e308}
    trainer.save(tmp_path, note)
    again = trainer.load(tmp_path)
    assert again == note
    assert type(again["shape"]) is tuple
    later = torch.optim.lr_scheduler.MultiStepLR(optimizer, [7])
    later.load_state_dict(again["schedule"])
    train(trainer, later, range(2))
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.001)


def test_where_there_is_no_checkpoint_nothing_is_loaded(tmp_path):
    model, optimizer, _ = make()
    assert shoal.Trainer(model, optimizer, loss_of).load(tmp_path) is None


def test_the_newest_stay(tmp_path):
    model, optimizer, schedule = make()
    trainer = shoal.Trainer(model, optimizer, loss_of)
    for number in range(4):
        train(trainer, schedule, [number])
        trainer.save(tmp_path, keep=2)
    trainer.wait_for_saves()
    folders = {path.name for path in tmp_path.iterdir() if path.name.startswith("step_")}
    assert folders == {"step_00000003", "step_00000004"}


class WithMore(nn.Linear):
    def get_extra_state(self):
        return 3


def test_what_a_checkpoint_cannot_hold_or_does_not_fit_is_refused(tmp_path):
    model, optimizer, schedule = make()
    trainer = shoal.Trainer(model, optimizer, loss_of)
    with pytest.raises(shoal.InvalidInput, match="note of a checkpoint is what JSON can hold: .*set"):
        trainer.save(tmp_path, {1})
    optimizer.param_groups[1]["mine"] = object()
    with pytest.raises(shoal.InvalidInput, match="option 'mine' of the optimizer's group 1.*state_dict"):
        trainer.save(tmp_path)
    del optimizer.param_groups[1]["mine"]
    with pytest.raises(shoal.InvalidInput, match="keeps the newest -1"):
        trainer.save(tmp_path, keep=-1)
    extra = WithMore(6, 4).double()
    with pytest.raises(shoal.InvalidInput, match="module WithMore has a state besides"):
        shoal.Trainer(extra, torch.optim.SGD(extra.parameters(), lr=0.1), loss_of).save(tmp_path)

    train(trainer, schedule, range(1))
    trainer.save(tmp_path)
    trainer.wait_for_saves()
    other = shoal.Trainer(model, torch.optim.Adam(model.parameters()), loss_of)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(shoal.InvalidInput, match="has 2 parameter groups, and this one has 1"):
        other.load(tmp_path)
    assert all(map(torch.equal, before, model.parameters()))
    wide = nn.Linear(6, 9)
    with pytest.raises(shoal.InvalidInput, match="the checkpoint"):
        shoal.Trainer(wide, None, loss_of).load(tmp_path)


def test_a_file_in_the_way_is_an_error(tmp_path):
    model, optimizer, _ = make()
    trainer = shoal.Trainer(model, optimizer, loss_of)
    (tmp_path / "run").write_text("")
    with pytest.raises(shoal.Error):
        trainer.save(tmp_path / "run")
        trainer.wait_for_saves()


@pytest.mark.parametrize(("saving", "loading"), [(2, 3), (3, 1), (1, 2)])
def test_ranks_go_on_from_what_others_saved(tmp_path, saving, loading):
    for ranks, mode in ((saving, "save"), (loading, "load")):
        script = pathlib.Path(__file__).with_name("checkpoints_on_ranks.py")
        done = run_ranks(ranks, script, mode, tmp_path)
        assert done.returncode == 0, done.stderr[-5000:]
        assert f"{mode}: equal" in done.stdout
