# SPDX-License-Identifier: Apache-2.0
"""A number that keeps changing becomes an input of the graph, where the model's code says what follows it."""

import itertools
import math
import sys

import pytest
import torch
from test_watch import Net, Twins, called

import shoal

calls = itertools.count()


def runs_so_far():
    return int(repr(calls)[6:-1])


class Annealed(Net):
    """`how(h, beta)` is what the model does with its number."""

    def __init__(self, how, beta=0.15):
        super().__init__()
        self.how = how
        self.b = beta

    def forward(self, x):
        next(calls)
        return self.out(self.how(self.hidden(x), self.b)).square().mean()


def anneal(how, values, loss=called, **options):
    """Trains both; returns how often the model was called by Shoal after the first eight steps."""
    twins = Twins(lambda: (Annealed(how, values[0]), loss), ignores=["*calls"], spot_checks=-1, **options)
    before = 0
    for step, value in enumerate(values):
        if step == 8:
            before = runs_so_far() - 8
        twins.both(lambda model, _, value=value: setattr(model, "b", value))
        twins.step()
    return runs_so_far() - before - len(values)


RISING = [0.15 + 0.01 * step for step in range(40)]

FOLLOWED = {
    "times": lambda h, b: h * b,
    "from the left": lambda h, b: b * h,
    "a mixture": lambda h, b: (1 - b) * h + b * h.square(),
    "divided by a temperature": lambda h, b: h / b,
    "subtracted": lambda h, b: h - b,
    "subtracted from": lambda h, b: 2.1 * b - h,
    "clamped": lambda h, b: torch.clamp(h, -b, b),
    "a power": lambda h, b: h.abs() ** (b + 2),
    "in place": lambda h, b: (h + 1).mul_(b),
    "bounded": lambda h, b: h * min(1.0, max(0.1, b)),
    "with a condition": lambda h, b: h * b if b > 0.02 else h,
    "of a schedule": lambda h, b: h * (0.5 * (1 + b) ** 2),
    "not at all": lambda h, b: h,
}


@pytest.mark.parametrize("how", FOLLOWED.values(), ids=FOLLOWED.keys())
def test_a_number_that_keeps_changing_is_an_input(how):
    assert anneal(how, RISING) == 0


NOT_FOLLOWED = {
    "read by a library": lambda h, b: h * math.exp(b),
    "decided by a library": lambda h, b: h if math.exp(b) > 1.3 else h * 2,
    "decided by a tensor": lambda h, b: h if (torch.ones(1) * b).item() > 0.3 else h * 2,
    "a text": lambda h, b: h * float(f"{b:.3f}"),
    "a key": lambda h, b: h * {0.15: 2}.get(b, 1.5),
    "a kind": lambda h, b: h * 2 if isinstance(b, float) and b > 0.3 else h,
    "a size": lambda h, b: h[: int(b * 10)],
}


@pytest.mark.parametrize("how", NOT_FOLLOWED.values(), ids=NOT_FOLLOWED.keys())
def test_what_cannot_be_followed_is_captured_anew_and_right(how):
    anneal(how, RISING)


def test_conditions_decide_which_graph_is_right():
    def how(h, b):
        return h * b if b > 0.3 else h * b + 1

    back_and_forth = [0.1, 0.15, 0.2, 0.25, 0.4, 0.5, 0.6, 0.7] + [0.28, 0.35, 0.29, 0.31, 0.1, 0.9] * 3
    assert anneal(how, back_and_forth) == 0


def test_zero_one_and_other_signs_have_graphs_of_their_own():
    def how(h, b):
        return (h * b).clamp(min=-1) + h.abs() ** (2 + b)

    anneal(how, [0.5, 0.75, 0.9, 1.0, 1.1, 1.0, 0.3, 0.0, -0.0, -0.1, -0.5, 0.2, 3.0, 3.5, math.nan][:-1])


def test_integers_count_too_but_shape_nothing():
    def how(h, b):
        return h * min(1.0, b / 100) + h[: 3 + b % 2].sum()

    anneal(how, list(range(12, 30)))
    assert anneal(lambda h, b: h * min(1.0, b / 100), list(range(12, 140))) <= 12  # a graph each side of 100
    assert anneal(lambda h, b: h, list(range(12, 40))) == 0


def test_several_numbers_of_several_places_with_backward_evaluation_and_another_optimizer():
    tau, settings, weights = 0.3, {"gamma": 1.5}, [0.25]

    def make():
        def loss(model, x):
            h = model.hidden(x)
            return model(x) * tau + (h * settings["gamma"]).square().mean() * (1 - weights[0])

        return Net(), loss

    twins = Twins(make, spot_checks=0.5)
    x = torch.randn(4, 3, dtype=torch.float64)
    for step in range(14):
        tau, settings["gamma"], weights[0] = 0.3 + step / 100, 1.5 + step / 50, 0.25 + step / 90
        wanted = twins.eager_loss(twins.eager, x).item()
        assert twins.trainer.evaluate(x).loss == pytest.approx(wanted, rel=1e-12)
        if step == 9:
            for optimizer in (twins.optimizer, twins.trainer.optimizer):
                optimizer.param_groups[0]["weight_decay"] = 0.1
        twins.step(x)
        if step % 3 == 0:
            model, trainer = twins.model, twins.trainer
            trainer.backward(x)
            got = [each.grad.clone() for each in model.parameters()]
            model.zero_grad()
            twins.loss_fn(model, x).backward()
            torch.testing.assert_close(got, [each.grad for each in model.parameters()])
            model.zero_grad()


def test_a_number_in_a_guard_on_the_batch():
    def make():
        def loss(model, x):
            return model(x) * (2 if (x * model.scale).sum() > 1 else 3)

        return Net(), loss

    twins = Twins(make)
    torch.manual_seed(3)
    for step in range(20):
        twins.both(lambda model, _, step=step: setattr(model, "scale", 0.2 + step / 10.5))
        twins.step()


def test_after_a_trace_the_model_has_its_number():
    model = Annealed(FOLLOWED["times"])
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), called, ignores=["*calls"])
    for value in RISING:
        model.b = value
        trainer.step(torch.randn(4, 3, dtype=torch.float64))
        assert type(model.b) is float and model.b == value


class OfBatch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)

    def forward(self, x, beta):
        return (1 - beta) * self.fc(x).square().mean() + beta * self.fc.weight.abs().mean()


def test_a_float_in_the_batch_is_an_input_from_its_third_value_on():
    torch.manual_seed(0)
    model, plain = OfBatch().double(), OfBatch().double()
    plain.load_state_dict(model.state_dict())
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), spot_checks=0)
    x = torch.randn(3, 4).double()
    recordings = 0

    def count(frame, event, _):
        nonlocal recordings
        recordings += event == "call" and frame.f_code is OfBatch.forward.__code__

    for step in range(40):
        beta = 0.9 - step / 50
        sgd.zero_grad()
        loss = plain(x, beta)
        loss.backward()
        sgd.step()
        before = sys.getprofile()
        sys.setprofile(count if step >= 8 else None)
        try:
            got = trainer.step({"x": x, "beta": beta}).loss
        finally:
            sys.setprofile(before)
        assert got == pytest.approx(loss.item(), rel=1e-12)
    assert recordings <= 2  # spot checks at most
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=0)


def test_a_float_in_the_batch_that_decides_goes_the_right_way_each_time():
    class Decides(OfBatch):
        def forward(self, x, beta):
            y = self.fc(x).square().mean()
            return y * beta if beta > 0.5 else y + beta

    model = Decides().double()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0))
    x = torch.randn(3, 4).double()
    for beta in (0.9, 0.8, 0.7, 0.6, 0.55, 0.4, 0.3, 0.2, 0.85, 0.25, 1.0, 0.0, -0.5, float("inf")):
        wanted = model(x, beta).item()
        if wanted == float("inf"):
            with pytest.raises(shoal.InvalidInput, match="is inf"):
                trainer.step({"x": x, "beta": beta})
        else:
            assert trainer.step({"x": x, "beta": beta}).loss == pytest.approx(wanted, rel=1e-12), beta
