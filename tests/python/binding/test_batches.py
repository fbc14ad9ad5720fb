# SPDX-License-Identifier: Apache-2.0
"""A model and its loss see a batch as it was given: order, classes, identity; and return outputs so."""

import collections
import copy
import dataclasses
import types
import typing

import pytest
import torch
from torch import nn
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

import shoal


def column(seed):
    return torch.randn(5, 2, generator=torch.Generator().manual_seed(seed)).double()


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def both(loss, *batches, make=net):
    """Trains on these batches with eager PyTorch and with one trainer: the same losses and weights."""
    plain = make()
    captured = copy.deepcopy(plain)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    trainer = shoal.Trainer(captured, torch.optim.AdamW(captured.parameters(), lr=0.01), loss)
    for batch in [*batches, *batches]:
        optimizer.zero_grad()
        wanted = loss(plain, batch)
        wanted.backward()
        optimizer.step()
        assert trainer.step(batch).loss == pytest.approx(wanted.item(), rel=1e-12)
    torch.testing.assert_close(captured.state_dict(), plain.state_dict(), rtol=1e-9, atol=1e-12)
    return trainer


def of_values(model, batch):
    return model(torch.cat(list(batch.values()), 1)).square().mean()


def test_the_order_of_keys_is_kept_also_when_it_changes():
    a, b = column(1), column(2)
    both(of_values, {"z": a, "a": b}, {"a": a, "z": b}, {"z": b, "a": a})


class Bag(dict):
    def first(self):
        return next(iter(self.values()))


class Rows(list):
    unit = "m"

    def joined(self):
        return torch.cat(list(self), 1) * self.scale


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor

    def joined(self):
        return torch.cat(list(self), 1)


class Triple(tuple):
    def __new__(cls, a, b, scale):
        made = super().__new__(cls, (a, b))
        made.scale = scale
        return made


@dataclasses.dataclass
class Sample:
    left: torch.Tensor
    right: torch.Tensor

    def __post_init__(self):
        self.total = self.left + self.right


def rows(scale):
    made = Rows([column(1), column(2)])
    made.scale = scale
    return made


def of_default(model, batch):
    assert type(batch) is collections.defaultdict
    return of_values(model, batch) + len(batch["new"])


def of_class(kind, joined):
    def loss(model, batch):
        assert type(batch) is kind
        return model(joined(batch)).square().mean()

    return loss


CONTAINERS = {
    "defaultdict": (of_default, collections.defaultdict(list, z=column(1), a=column(2))),
    "ordered dictionary": (
        of_class(collections.OrderedDict, lambda b: torch.cat([b["z"], b.pop("a")], 1)),
        collections.OrderedDict(z=column(1), a=column(2)),
    ),
    "dictionary of a class": (
        of_class(Bag, lambda b: torch.cat([b.first(), b["a"]], 1)),
        Bag(z=column(1), a=column(2)),
    ),
    "read-only mapping": (
        of_class(types.MappingProxyType, lambda b: torch.cat(list(b.values()), 1)),
        types.MappingProxyType({"z": column(1), "a": column(2)}),
    ),
    "list of a class": (of_class(Rows, Rows.joined), rows(2.0)),
    "named tuple": (of_class(Pair, Pair.joined), Pair(column(1), column(2))),
    "tuple of a class": (
        of_class(Triple, lambda b: torch.cat(list(b), 1) * b.scale),
        Triple(column(1), column(2), column(3)[0, 0]),
    ),
    "dataclass": (of_class(Sample, lambda b: torch.cat([b.left, b.total], 1)), Sample(column(1), column(2))),
    "batch encoding": (
        of_class(BatchEncoding, lambda b: torch.cat([b.z, b["a"]], 1)),
        BatchEncoding({"z": column(1), "a": column(2)}),
    ),
    "model output": (
        of_class(BaseModelOutput, lambda b: torch.cat([b.last_hidden_state, b[1]], 1)),
        BaseModelOutput(last_hidden_state=column(1), hidden_states=column(2)),
    ),
    "shape": (
        lambda model, batch: model(batch[0].view(batch[1])).square().mean(),
        (column(1).reshape(-1)[:8], torch.Size([2, 4])),
    ),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_classes_of_containers_are_kept(name):
    loss, batch = CONTAINERS[name]
    if name in ("ordered dictionary", "defaultdict"):  # the loss changes what it is given
        plain = copy.deepcopy(batch)
        wanted = loss(net(), plain).item()
        trained = net()
        trainer = shoal.Trainer(trained, torch.optim.SGD(trained.parameters(), lr=0.0), loss)
        assert trainer.step(batch).loss == pytest.approx(wanted)
        assert trainer.step(batch).loss == pytest.approx(wanted)
    else:
        both(loss, batch)


def test_attributes_of_containers_are_inputs_or_not_there():
    first, second = rows(torch.tensor(2.0).double()), rows(torch.tensor(3.0).double())
    both(of_class(Rows, Rows.joined), first, second, rows(1.5), rows(2.5))
    first.scale = {1, 2}
    model = net()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters()), of_class(Rows, Rows.joined))
    with pytest.raises(AttributeError, match="scale"):
        trainer.step(first)


def test_a_tensor_given_twice_is_one_tensor():
    def loss(model, batch):
        scale = 3 if batch["x"] is batch["y"] and batch["more"] is batch["again"] else 1
        return model(torch.cat([batch["x"], batch["more"][0]], 1)).square().mean() * scale

    x, y, inner = column(1), column(2), [column(3)]
    both(
        loss,
        {"x": x, "y": x, "more": inner, "again": inner},
        {"x": x, "y": y, "more": inner, "again": inner},
        {"x": x, "y": x, "more": inner, "again": list(inner)},
    )


def test_keys_of_one_text_are_told_apart():
    def loss(model, batch):
        one = model(torch.cat([batch[1], batch["1"]], 1)).square().mean()
        two = model(torch.cat([batch["a.b"], batch["a"]["b"]], 1)).square().sum()
        return one + 2 * two + model(torch.cat([batch['"'], batch[(1, "x")]], 1)).sum()

    a, b, c, d = (column(seed) for seed in range(4))
    both(
        loss,
        {1: a, "1": b, "a.b": c, "a": {"b": d}, '"': a, (1, "x"): c},
        {"1": b, 1: a, "a": {"b": c}, "a.b": d, '"': b, (1, "x"): d},
    )


def test_errors_name_items_by_their_keys():
    model = net()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters()), of_values)
    with pytest.raises(shoal.InvalidInput, match=r"item images.0.mask of the batch is a set"):
        trainer.step({"images": [{"mask": {1}}]})
    with pytest.raises(shoal.InvalidInput, match=r'item "a.b".1 of the batch is a set'):
        trainer.step({"a.b": {1: {1}}})
    inside = []
    inside.append(inside)
    with pytest.raises(
        shoal.InvalidInput, match=r"item x.0 of the batch is a container that it is in itself"
    ):
        trainer.step({"x": inside})


def test_none_numbers_and_structures_that_change():
    def loss(model, batch):
        h = model(torch.cat([batch["x"], batch["x"]], 1))
        if batch.get("mask") is not None:
            h = h * batch["mask"][:, :1]
        if isinstance(batch.get("more"), tuple):
            h = h + sum(each.sum() for each in batch["more"])
        return h.square().mean() * batch.get("scale", 1.0)

    x, mask = column(1), column(2)
    trainer = both(
        loss,
        {"x": x, "mask": None},
        {"x": x, "mask": mask, "scale": 0.5},
        {"x": x},
        {"x": x, "more": (x, mask), "scale": 2},
        {"x": x, "more": [x, mask], "scale": 2.0},
    )
    assert trainer.evaluate({"x": x}).loss > 0
    assert trainer.evaluate({"x": x, "mask": mask}).loss > 0


def test_a_leaf_that_requires_a_gradient_is_refused():
    model = net()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), of_values)
    batch = {"x": column(1).requires_grad_(), "y": column(2)}
    with pytest.raises(shoal.InvalidInput, match=r"item x of the batch requires a gradient.*x\.detach\(\)"):
        trainer.step(batch)
    assert trainer.evaluate(batch).loss > 0
    trainer.step({"x": batch["x"].detach(), "y": batch["y"]})


class Answer(dict):
    pass


def test_outputs_keep_order_classes_and_identity():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3).double()

        def forward(self, x):
            h = self.fc(x)
            pair = Pair(h, h * 2)
            return Answer(z=pair, loss=h.square().mean(), a=h, more=collections.OrderedDict(y=h, b="text"))

    model, x = Model(), torch.randn(5, 4).double()
    with torch.no_grad():
        wanted = model(x)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for result in (trainer.step((x,), outputs=True), trainer.evaluate((x,), outputs=True)):
        got = result.outputs
        assert type(got) is Answer and list(got) == ["z", "loss", "a", "more"]
        assert type(got["z"]) is Pair and type(got["more"]) is collections.OrderedDict
        assert got["a"] is got["z"].left and got["more"]["y"] is got["a"] and got["more"]["b"] == "text"
        torch.testing.assert_close(got["z"].right, wanted["z"].right)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4).double()

    def forward(self, x):
        return x + self.fc(x).tanh()


class Blocks(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        torch.manual_seed(5)
        self.block, self.head = wrap(Block()), nn.Linear(4, 3).double()

    def forward(self, x):
        return self.head(self.block(x))


@torch.compile(backend="eager")
def compiled_loss(model, batch):
    return model(batch).square().mean()


def against_uncompiled(wrap, loss):
    x = torch.randn(5, 4).double()
    plain, wrapped = Blocks(lambda block: block), Blocks(wrap)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    trainer = shoal.Trainer(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1), loss)
    for _ in range(3):
        optimizer.zero_grad()
        wanted = plain(x).square().mean()
        wanted.backward()
        optimizer.step()
        assert trainer.step(x).loss == pytest.approx(wanted.item(), rel=1e-12)
    for got, wanted in zip(wrapped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)
    return wrapped, x


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_compiled_submodule_runs_as_it_was_written(backend):
    wrapped, x = against_uncompiled(
        lambda block: torch.compile(block, backend=backend), lambda m, b: m(b).square().mean()
    )
    if backend == "eager":  # and is compiled again outside of a step
        torch.testing.assert_close(wrapped.block(x), wrapped.block._orig_mod(x))


def test_a_compiled_loss_runs_as_it_was_written():
    against_uncompiled(lambda block: block, compiled_loss)


def test_traced_submodules_run_and_scripted_ones_are_refused_where_they_run_other_operators_each_time():
    with pytest.raises(
        shoal.InvalidInput, match=r"(?s)TorchScript.*Remedy: .*give the module that was scripted"
    ):
        against_uncompiled(torch.jit.script, lambda m, b: m(b).square().mean())
    against_uncompiled(
        lambda block: torch.jit.trace(block, torch.ones(5, 4).double()), lambda m, b: m(b).square().mean()
    )


@pytest.fixture
def process_group():
    import torch.distributed as dist

    def start(ranks):
        if ranks == 1:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        else:
            from torch.testing._internal.distributed.fake_pg import FakeStore

            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)

    yield start
    dist.destroy_process_group()


def test_a_model_in_ddp_of_one_rank_is_unwrapped(process_group):
    process_group(1)
    model = Blocks(lambda block: block)
    wrapped = nn.parallel.DistributedDataParallel(model)
    trainer = shoal.Trainer(
        wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1), lambda m, x: m(x).square().mean()
    )
    assert trainer.model is model
    x = torch.randn(5, 4).double()
    assert trainer.step(x).loss > trainer.step(x).loss


def test_a_model_in_ddp_of_ranks_that_shoal_does_not_know_is_refused(process_group):
    process_group(2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    with pytest.raises(shoal.InvalidInput, match=r"DistributedDataParallel of 2 ranks.*model\.module and"):
        shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
