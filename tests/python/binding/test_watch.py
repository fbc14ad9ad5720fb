# SPDX-License-Identifier: Apache-2.0
# Above 400 lines: one test for each change; they share the models.
"""What a living program changes between and inside steps is followed as eager does, or refused by name."""

import collections
import copy
import functools
import itertools
import multiprocessing
import random
import sys
import types
import weakref

import numpy
import pytest
import torch
from torch import nn

import shoal


class Twins:
    """A model and its loss twice, trained by PyTorch and by Shoal. `make()` gives (model, loss_fn)."""

    def __init__(self, make, **options):
        torch.manual_seed(1)
        self.eager, self.eager_loss = make()
        torch.manual_seed(1)
        self.model, self.loss_fn = make()
        self.optimizer = torch.optim.SGD(self.eager.parameters(), lr=0.1, momentum=0.5)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5)
        self.trainer = shoal.Trainer(self.model, optimizer, self.loss_fn, **options)

    def both(self, act):
        act(self.eager, self.eager_loss), act(self.model, self.loss_fn)

    def step(self, batch=None):
        batch = torch.randn(4, 3, dtype=torch.float64) if batch is None else batch
        self.optimizer.zero_grad()
        wanted = self.eager_loss(self.eager, batch)
        wanted.backward()
        self.optimizer.step()
        got = self.trainer.step(batch)
        assert got.loss == pytest.approx(wanted.item(), rel=1e-12), f"step {got.step}"
        for (name, a), b in zip(self.eager.named_parameters(), self.model.parameters(), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-12, msg=name)
        return got


class Net(nn.Module):
    beta = 1.0

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3).double()
        self.out = nn.Linear(3, 1).double()
        self.scale = 1.0
        self.options = {"power": [2]}
        self.register_buffer("shift", torch.zeros(3, dtype=torch.float64))

    def hidden(self, x):
        return torch.tanh(self.fc(x)) * self.scale * self.beta + self.shift

    def forward(self, x):
        return self.out(self.hidden(x)).pow(self.options["power"][0]).mean()


def called(model, batch):
    return model(batch)


def plain():
    return Net(), called


# ---- Between steps


def set_scale(model, _):
    model.scale = 0.25


def set_power(model, _):
    model.options["power"][0] = 4


def set_instance_forward(model, _):
    model.hidden = types.MethodType(lambda self, x: self.fc(x), model)


def replace_buffer(model, _):
    model.shift = torch.full((3,), 0.5, dtype=torch.float64)


def write_buffer_data(model, _):
    model.shift.data = torch.full((3,), 0.5, dtype=torch.float64)


def add_hook(model, _):
    model.fc.register_forward_hook(lambda module, args, output: output * 2)


def add_pre_hook(model, _):
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def add_gradient_hook(model, _):
    model.fc.weight.register_hook(lambda gradient: gradient * 3)


def freeze(model, _):
    model.fc.requires_grad_(False)


def assign_state(model, _):
    state = {name: tensor.clone() * 2 for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])
    model.load_state_dict({**state, "shift": state["shift"] + 1})


def replace_activation(model, _):
    model.fc.forward = functools.partial(nn.functional.linear, weight=model.fc.weight, bias=None)


@pytest.mark.parametrize(
    "change",
    [
        set_scale,
        set_power,
        set_instance_forward,
        replace_buffer,
        write_buffer_data,
        add_hook,
        add_pre_hook,
        add_gradient_hook,
        freeze,
        assign_state,
        replace_activation,
    ],
)
def test_what_is_changed_between_steps_is_followed(change):
    twins = Twins(plain)
    twins.step(), twins.step()
    twins.both(change)
    twins.step(), twins.step()


def test_a_class_attribute_is_followed(monkeypatch):
    twins = Twins(plain)
    twins.step()
    monkeypatch.setattr(Net, "beta", 0.3)
    twins.step()
    monkeypatch.setattr(Net, "hidden", lambda self, x: self.fc(x))
    twins.step()


def test_dropout_that_is_turned_off_is_off():
    def make():
        model = nn.Sequential(nn.Linear(3, 64).double(), nn.Dropout(0.0), nn.Linear(64, 1).double())
        return model, lambda model, x: model(x).square().mean()

    twins = Twins(make)
    twins.step()
    twins.model[1].p = 0.9
    losses = {twins.trainer.step(torch.ones(4, 3, dtype=torch.float64)).loss for _ in range(3)}
    assert len(losses) == 3
    twins = Twins(make)
    twins.model[1].p = twins.eager[1].p = 0.9
    twins.trainer.step(torch.ones(4, 3, dtype=torch.float64))
    twins = Twins(make)
    twins.step()


SETTINGS = types.SimpleNamespace(weight=1.0)
FACTOR = 1.0


def test_what_the_loss_closes_over_and_the_globals_that_it_names_are_followed():
    alpha, settings, weights = 1.0, {"gamma": 1.0}, [1.0]

    def make():
        def loss(model, x, *, extra=[0.0]):  # noqa: B006
            return model(x) * alpha * settings["gamma"] * weights[0] * FACTOR * SETTINGS.weight + extra[0]

        return Net(), loss

    global FACTOR
    twins = Twins(make)
    try:
        twins.step()
        alpha = 2.0
        twins.step()
        settings["gamma"] = 3.0
        twins.step()
        weights[:] = [4.0]
        twins.step()
        FACTOR = 5.0
        twins.step()
        SETTINGS.weight = 6.0
        twins.step()
        twins.both(lambda _, loss: loss.__kwdefaults__["extra"].__setitem__(0, 7.0))
        twins.step()
    finally:
        FACTOR, SETTINGS.weight = 1.0, 1.0


def test_a_module_of_settings_is_followed(monkeypatch, tmp_path):
    (tmp_path / "my_settings.py").write_text("RATE = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = __import__("my_settings")

    def make():
        source = "import my_settings\ndef loss(model, x):\n    return model(x) * my_settings.RATE\n"
        names = {}
        exec(compile(source, "user_code.py", "exec"), names)
        return Net(), names["loss"]

    twins = Twins(make)
    twins.step()
    settings.RATE = 0.5
    twins.step()
    del sys.modules["my_settings"]


def test_an_annealed_number_is_followed_at_every_step():
    twins = Twins(plain)
    for step in range(6):
        twins.both(lambda model, _, value=step / 10: setattr(model, "scale", value))
        twins.step()


def test_a_graph_is_kept_for_a_setting_that_comes_again():
    calls = itertools.count()

    def loss(model, x):
        next(calls)
        return model(x)

    model = Net()
    trainer = shoal.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss, spot_checks=-1, ignores=["*calls"]
    )
    x = torch.randn(4, 3, dtype=torch.float64)
    trainer.step(x)
    model.scale = 0.5
    trainer.step(x)
    before = repr(calls)
    for scale in (1.0, 0.5, 1.0):
        model.scale = scale
        trainer.step(x)
    assert repr(calls) == before, "a structure was captured again"


def test_tensors_beside_the_model_are_read_anew():
    def make():
        weight = torch.ones(3, dtype=torch.float64)
        counts = torch.full((3,), 2.0, dtype=torch.float64)
        array = numpy.ones(3)

        def loss(model, x):
            return (model.hidden(x) * weight / counts * torch.from_numpy(array)).sum() + 0 * model(x)

        loss.weight, loss.counts, loss.array = weight, counts, array
        return Net(), loss

    twins = Twins(make)
    twins.step()
    for factor in (2.0, 3.0, 4.0):
        twins.both(lambda _, loss, factor=factor: loss.weight.mul_(factor))
        twins.step()
        twins.both(lambda _, loss: loss.counts.add_(1))
        twins.step()
    twins.both(lambda _, loss: loss.array.__setitem__(0, 5.0))
    twins.step()


def test_a_teacher_that_is_averaged_between_steps_and_its_mode_are_followed():
    def make():
        teacher = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double().requires_grad_(False)

        def loss(model, x):
            return (model.hidden(x) - teacher(x)).square().mean() + 0 * model(x)

        loss.teacher = teacher
        return Net(), loss

    twins = Twins(make)

    def average(model, loss):
        with torch.no_grad():
            loss.teacher[0].weight.mul_(0.5).add_(model.fc.weight, alpha=0.5)

    def same_teachers():
        wanted = twins.eager_loss.teacher.state_dict()
        torch.testing.assert_close(twins.loss_fn.teacher.state_dict(), wanted, rtol=1e-12, atol=1e-12)

    for _ in range(3):
        twins.step()
        twins.both(average)
        same_teachers()  # running statistics too
    twins.both(lambda _, loss: loss.teacher.eval())
    twins.step()
    twins.both(lambda _, loss: loss.teacher.train())
    twins.step()
    same_teachers()


def test_weights_of_the_loss_with_an_optimizer_of_their_own_get_their_gradients():
    def make():
        weights = nn.Parameter(torch.zeros(2, dtype=torch.float64))

        def loss(model, x):
            h = model.hidden(x)
            terms = torch.stack([h.square().mean(), h.abs().mean()])
            return (terms * torch.exp(-weights)).sum() + weights.sum() + 0 * model(x)

        loss.weights, loss.optimizer = weights, torch.optim.Adam([weights], lr=0.05)
        return Net(), loss

    twins = Twins(make)
    for _ in range(4):
        twins.step()
        for loss in (twins.eager_loss, twins.loss_fn):
            loss.optimizer.step()
            loss.optimizer.zero_grad()
        torch.testing.assert_close(twins.loss_fn.weights, twins.eager_loss.weights, rtol=1e-10, atol=1e-12)
    assert twins.loss_fn.weights.detach().abs().min() > 0.1


# ---- Inside a step


class Carried(Net):
    def __init__(self):
        super().__init__()
        self.h = None
        self.pair = (torch.zeros(3, dtype=torch.float64), [torch.zeros(3, dtype=torch.float64)])
        self.map = None

    def forward(self, x):
        h = self.hidden(x)
        if self.h is not None:
            h = h + 0.1 * self.h
        mean, (other,) = self.pair
        self.pair = (0.9 * mean + 0.1 * h.detach().mean(0), [other + 1])
        self.h = h.detach().mean(0)
        self.map = {"attention": h.detach().softmax(-1)}
        return self.out(h + mean + other).square().mean()


def test_tensors_that_forward_keeps_in_attributes_are_state():
    twins = Twins(lambda: (Carried(), called))
    for _ in range(4):
        twins.step()
        torch.testing.assert_close(twins.model.h, twins.eager.h)
        torch.testing.assert_close(twins.model.pair, twins.eager.pair)
        torch.testing.assert_close(twins.model.map, twins.eager.map)
        copy.deepcopy(twins.model)
    kept = twins.model.h
    before = kept.clone()
    twins.step()
    assert torch.equal(kept, before), "the old state was written over"
    twins.both(lambda model, _: setattr(model, "h", None))
    twins.step()
    twins.both(lambda model, _: model.h.zero_())
    twins.step()


def test_state_is_written_in_place_too():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.total = torch.zeros(3, dtype=torch.float64)
            self.seen = torch.zeros((), dtype=torch.int64)

        def forward(self, x):
            h = self.hidden(x)
            self.total += h.detach().sum(0)
            self.total[0] = 1
            self.seen.add_(len(x))
            return self.out(h + self.total / self.seen).square().mean()

    twins = Twins(lambda: (Model(), called))
    for _ in range(4):
        twins.step()
        torch.testing.assert_close(twins.model.total, twins.eager.total)
        assert twins.model.seen == twins.eager.seen


def test_a_metric_that_the_loss_counts_is_counted():
    def make():
        total, log = torch.zeros((), dtype=torch.float64), collections.deque(maxlen=1)

        def loss(model, x):
            value = model(x)
            total.add_(value.detach())
            log.append(value.detach())
            return value

        loss.total, loss.log = total, log
        return Net(), loss

    twins = Twins(make)
    for _ in range(3):
        twins.step()
        torch.testing.assert_close(twins.loss_fn.total, twins.eager_loss.total)
    torch.testing.assert_close(list(twins.loss_fn.log), list(twins.eager_loss.log))


def test_lists_of_auxiliary_losses_that_the_loop_empties():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.losses = []

        def forward(self, x):
            h = self.hidden(x)
            self.losses.append(h.square().mean())
            return self.out(h).square().mean() + sum(self.losses)

    twins = Twins(lambda: (Model(), called))
    for _ in range(3):
        twins.step()
        assert len(twins.model.losses) == 1
        torch.testing.assert_close(twins.model.losses, twins.eager.losses)
        twins.both(lambda model, _: model.losses.clear())
    twins.step()
    with pytest.raises(shoal.InvalidInput, match=r"changes losses while it runs"):
        for _ in range(2):
            twins.trainer.step(torch.randn(4, 3, dtype=torch.float64))


def test_a_cache_and_a_flag_are_made_once():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.longest, self.table, self.is_ready = 0, None, False

        def forward(self, x):
            if len(x) > self.longest:
                self.longest = len(x)
                self.table = torch.arange(self.longest, dtype=torch.float64).cos()
            if not self.is_ready:
                self.is_ready = True
                with torch.no_grad():
                    self.shift.copy_(x.mean(0))
            return self.out(self.hidden(x) + self.table[: len(x), None]).square().mean()

    twins = Twins(lambda: (Model(), called))
    for rows in (4, 4, 2, 6, 6, 4):
        twins.step(torch.randn(rows, 3, dtype=torch.float64))
        assert twins.model.longest == twins.eager.longest and twins.model.is_ready
        torch.testing.assert_close(twins.model.table, twins.eager.table)


def test_a_buffer_registered_at_the_first_forward_is_one():
    class Model(Net):
        def forward(self, x):
            if not hasattr(self, "mean"):
                self.register_buffer("mean", x.mean(0))
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            return self.out(self.hidden(x) + self.mean).square().mean()

    twins = Twins(lambda: (Model(), called))
    for _ in range(3):
        twins.step()
        torch.testing.assert_close(twins.model.state_dict(), twins.eager.state_dict())


@pytest.mark.parametrize("kind", ["attribute", "global", "dictionary"])
def test_a_counter_is_refused(kind):
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.statistics = {"calls": 0}

        def forward(self, x):
            if kind == "attribute":
                self.calls += 1
            elif kind == "global":
                global FACTOR
                FACTOR += 1
            else:
                self.statistics["calls"] += 1
            calls = {"attribute": self.calls, "global": FACTOR, "dictionary": self.statistics["calls"]}[kind]
            return super().forward(x) * (1 if calls < 4 else 100)

    global FACTOR
    FACTOR = 0
    name = {"attribute": "calls", "global": "FACTOR", "dictionary": "statistics.calls"}[kind]
    model = Model()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(
        shoal.InvalidInput, match=rf"{name} while it runs, at each step \(\d → \d\).*Remedy.*ignores"
    ):
        for _ in range(3):
            trainer.step({"x": torch.randn(4, 3, dtype=torch.float64)})
    FACTOR = 1.0


def test_a_counter_known_to_be_harmless_is_ignored():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    twins = Twins(lambda: (Model(), called), ignores=["*calls"])
    for _ in range(3):
        twins.step()


@pytest.mark.parametrize("source", ["random", "numpy", "own", "numpy's own"])
def test_a_coin_is_refused(source):
    own, numpys = random.Random(3), numpy.random.default_rng(3)

    class Model(Net):
        def __init__(self):
            super().__init__()
            self.coins = [own, numpys]

        def forward(self, x):
            draws = {
                "random": lambda: random.random(),
                "numpy": lambda: numpy.random.rand(),
                "own": lambda: self.coins[0].random(),
                "numpy's own": lambda: self.coins[1].random(),
            }
            return super().forward(x) * (1 if draws[source]() < 0.5 else 2)

    model = Model()
    before = random.getstate(), own.getstate(), str(numpys.bit_generator.state)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), called)
    for _ in range(3):
        with pytest.raises(shoal.InvalidInput, match=r"draws from .* while it runs.*Remedy: draw with torch"):
            trainer.step(torch.randn(4, 3, dtype=torch.float64))
    assert before == (random.getstate(), own.getstate(), str(numpys.bit_generator.state))


def test_a_refused_model_works_in_eager_as_before():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.last, self.items, self.count = None, [], 0

        def forward(self, x):
            self.count += 1
            h = self.hidden(x)
            self.last = h
            self.items.append(h)
            self.shift = self.shift + h.detach().mean(0)
            return self.out(h).square().mean() * h.sum().item()

    model = Model()
    shift = model.shift
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), called)
    with pytest.raises(shoal.InvalidInput, match="reads a value"):
        trainer.step(torch.randn(4, 3, dtype=torch.float64))
    assert model.last is None and model.items == [] and model.count == 0 and model.shift is shift
    copy.deepcopy(model)
    model(torch.randn(4, 3, dtype=torch.float64)).backward()


def test_a_module_added_later_is_trained_and_gets_its_own_mode_back():
    twins = Twins(plain)
    twins.step()

    def extend(model, _):
        torch.manual_seed(5)
        model.out = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()

    twins.both(extend)
    for optimizer, model in ((twins.optimizer, twins.eager), (twins.trainer.optimizer, twins.model)):
        optimizer.add_param_group({"params": list(model.out.parameters())})
    twins.step()
    twins.trainer.evaluate(torch.randn(4, 3, dtype=torch.float64))
    assert all(module.training for module in twins.model.modules())
    twins.step()


def prepend(model, _):
    model.insert(0, nn.Identity())


def wrap(model, _):
    model[0] = nn.Sequential(model[0])


@pytest.mark.parametrize("change", [prepend, wrap])
def test_parameters_under_other_names_are_trained_on(change):
    def make():
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        return model, lambda model, x: model(x).square().mean()

    twins = Twins(make)
    twins.step(), twins.step()
    twins.both(change)
    for _ in range(3):
        twins.step()


class Swapped(Net):
    def forward(self, x):
        return super().forward(x) * 3


def swap_class(model, _):
    model.__class__ = Swapped


def set_attribute_of_a_parameter(model, _):
    model.fc.weight.factor = 2.0


@pytest.mark.parametrize("change", [swap_class, set_attribute_of_a_parameter])
def test_classes_and_attributes_of_parameters_are_followed(change):
    def make():
        def loss(model, x):
            return model(x) * getattr(model.fc.weight, "factor", 1.0)

        return Net(), loss

    twins = Twins(make)
    twins.step()
    twins.both(change)
    twins.step()


def test_functions_of_libraries_may_be_replaced(monkeypatch):
    twins = Twins(
        lambda: (nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double(), lambda m, x: m(x).square().mean())
    )
    twins.step()
    monkeypatch.setattr(torch, "tanh", lambda x: x * 2)
    twins.step()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output + 1)
    twins.step()
    handle.remove()
    twins.step()


def test_an_iterator_that_forward_consumes_is_refused():
    scales = iter([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = shoal.Trainer(model, optimizer, lambda model, x: model(x) * next(scales))
    with pytest.raises(shoal.InvalidInput, match="draws from loss_fn.scales while it runs"):
        trainer.step(torch.randn(4, 3, dtype=torch.float64))


def test_a_seed_that_forward_sets_is_refused():
    def loss(model, x):
        torch.manual_seed(0)
        return (model(x) * torch.rand(())).mean()

    model = Net()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    with pytest.raises(shoal.InvalidInput, match=r"calls torch\.manual_seed\(0\).*Remedy"):
        trainer.step(torch.randn(4, 3, dtype=torch.float64))


def test_a_batch_that_lies_otherwise_in_memory_has_a_graph_of_its_own():
    def make():
        return Net(), lambda model, x: model(x) * x.stride(0)

    twins = Twins(make)
    x = torch.randn(3, 3, dtype=torch.float64)
    for batch in (x, x.T, x, x[:1].expand(3, 3)):
        twins.step(batch)


def test_an_array_that_forward_writes_into_is_refused_and_left_as_it_was():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.counts = numpy.zeros(3)

        def forward(self, x):
            self.counts[1] += 1
            return super().forward(x)

    model = Model()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), called)
    with pytest.raises(shoal.InvalidInput, match="writes into counts, an array that is no tensor.*Remedy"):
        trainer.step(torch.randn(4, 3, dtype=torch.float64))
    assert model.counts.tolist() == [0, 0, 0]


def test_what_a_loss_reads_of_a_librarys_object_is_followed():
    class Settings:
        weight = 1.0

    settings = Settings()
    shared = multiprocessing.Value("d", 1.0)
    proxy = weakref.proxy(settings)
    schedule = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(schedule, step_size=2)

    def loss(model, x):
        weight = 1 + scheduler.last_epoch + shared.value + proxy.weight + scheduler.get_last_lr()[0]
        return model(x).square().mean() * weight

    def tick():
        schedule.step()
        scheduler.step()

    twins = Twins(lambda: (Net(), loss))
    for change in (
        lambda: None,
        tick,
        lambda: setattr(shared, "value", 3.0),
        lambda: setattr(settings, "weight", 0.5),
        tick,
    ):
        change()
        twins.step()
