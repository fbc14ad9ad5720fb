# SPDX-License-Identifier: Apache-2.0
# Above 400 lines: one probe after the other; each stands alone.
"""Ways to change a living program between or inside steps, as a stranger to the code would: each trains as by
PyTorch, or is refused by name. Spot checks are off, so that nothing comes right by luck.

A probe gives (model, loss, change): change(step) comes before each step. The program runs by PyTorch, then
anew by Shoal.
"""

import array
import builtins
import collections
import contextlib
import contextvars
import copy
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import json
import logging
import math
import operator
import os
import re
import statistics
import subprocess
import sys
import threading
import time
import types
import typing
import weakref

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import shoal

RIGHT, REFUSED = {}, {}


def right(probe):
    RIGHT[probe.__name__] = probe
    return probe


def refused(probe):
    REFUSED[probe.__name__] = probe
    return probe


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.second = nn.Linear(width, 2)
        self.double()

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def mean_square(model, x):
    return model(x).square().mean()


def at(step, act):
    return lambda now: act() if now == step else None


STEPS = 8


def train(probe, stack, by_shoal, tmp_path):
    torch.manual_seed(0)
    wants = probe.__code__.co_varnames[: probe.__code__.co_argcount]
    given = {"stack": stack, "tmp_path": tmp_path}
    model, loss, change, *rest = probe(**{name: given[name] for name in wants})
    make = rest[0] if rest else lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = make(model)
    if isinstance(optimizer, list):
        [optimizer] = optimizer
    if by_shoal:
        trainer = shoal.Trainer(model, optimizer, loss, seed=0, spot_checks=-1)
    seen = []
    for step in range(STEPS):
        torch.manual_seed(100 + step)
        x = torch.randn(5, 3, dtype=torch.float64)
        if change is not None:
            change(*(step, optimizer, x)[: change.__code__.co_argcount])
        if by_shoal:
            seen.append(trainer.step(x).loss)
        else:
            optimizer.zero_grad()
            value = loss(model, x)
            value.backward()
            optimizer.step()
            seen.append(value.item())
    return seen, {name: each.detach().clone() for name, each in model.state_dict().items()}


def outcome(probe, tmp_path):
    with contextlib.ExitStack() as stack:
        wanted, state = train(probe, stack, False, tmp_path)
    assert len({round(each, 12) for each in wanted}) > 1
    with contextlib.ExitStack() as stack:
        try:
            got, mine = train(probe, stack, True, tmp_path)
        except shoal.InvalidInput as error:
            return "refused" if "Remedy" in str(error) or "; give" in str(error) else "unclear", str(error)
        except Exception as error:
            return "raw error", f"{type(error).__name__}: {error}"
    off = [step for step in range(STEPS) if not math.isclose(got[step], wanted[step], rel_tol=1e-7)]
    if off:
        return "silently wrong", f"from step {off[0]}: {got[off[0]]} not {wanted[off[0]]}"
    for name, tensor in state.items():
        rtol = 1e-4 if tensor.dtype == torch.float32 else 1e-8
        if not torch.allclose(mine[name], tensor, rtol=rtol, atol=rtol / 100):
            return "silently wrong", f"{name} differs"
    return "right", ""


# ---- What PyTorch users do between steps


@right
def gradual_unfreezing():
    model = Net()
    model.first.requires_grad_(False)
    return model, mean_square, at(3, lambda: model.first.requires_grad_(True))


@right
def low_rank_adapters():
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.a = nn.Parameter(torch.randn(2, base.in_features).double())
            self.b = nn.Parameter(torch.zeros(base.out_features, 2).double())

        def forward(self, x):
            return self.base(x) + x @ self.a.T @ self.b.T

    model = Net()

    def change(step, optimizer):
        if step == 3:
            model.first.requires_grad_(False)
            model.first = Adapted(model.first)
            optimizer.add_param_group({"params": [model.first.a, model.first.b], "lr": 0.1})

    return model, mean_square, change


@right
def average_of_weights_as_a_teacher():
    model = Net()
    teacher = copy.deepcopy(model).requires_grad_(False)

    def average(step):
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)

    return model, lambda m, x: mean_square(m, x) + (m(x) - teacher(x) - 1).square().mean(), average


@right
def swa_model_with_its_counter():
    model = Net()
    averaged = torch.optim.swa_utils.AveragedModel(model)

    def loss(m, x):
        return (m(x) - averaged(x).detach() - 1).square().mean()

    return model, loss, lambda step: averaged.update_parameters(model)


@right
def curriculum_of_lengths():
    task = types.SimpleNamespace(length=1)
    return (
        Net(),
        lambda m, x: m(x)[: task.length].square().mean(),
        lambda step: setattr(task, "length", 1 + step // 2),
    )


@right
def another_loss_of_a_table():
    table = {"l1": F.l1_loss, "l2": F.mse_loss, "huber": F.huber_loss}
    now = {"name": "l2"}

    def loss(m, x):
        y = m(x)
        return table[now["name"]](y, torch.zeros_like(y))

    return Net(), loss, lambda step: now.update(name=["l2", "l1", "huber"][step % 3])


@right
def a_loss_module_is_replaced():
    box = [nn.MSELoss()]

    def change(step):
        if step == 3:
            box[0] = nn.SmoothL1Loss(beta=0.1)

    return Net(), lambda m, x: box[0](m(x), torch.ones(5, 2).double()), change


@right
def reduction_of_a_loss_module():
    criterion = nn.MSELoss()
    return (
        Net(),
        lambda m, x: criterion(m(x), torch.ones(5, 2).double()),
        at(3, lambda: setattr(criterion, "reduction", "sum")),
    )


@right
def a_cosine_that_a_schedule_object_computes():
    class Cosine:
        def __init__(self):
            self.step_count = 0

        @property
        def value(self):
            return 0.5 * (1 + math.cos(self.step_count / 10))

        def __call__(self):
            return self.value

    schedule = Cosine()

    def tick(step):
        schedule.step_count += 1

    return Net(), lambda m, x: mean_square(m, x) * schedule() + schedule.value, tick


@right
def learning_rate_scheduler_of_lambdas():
    holder = {}

    def change(step, optimizer):
        if not holder:
            holder["it"] = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
        optimizer._opt_called = True
        holder["it"].step()

    return Net(), mean_square, change


@right
def momentum_and_weight_decay_schedules():
    def change(step, optimizer):
        for group in optimizer.param_groups:
            group["momentum"] = 0.5 + step / 20
            group["weight_decay"] = step / 100

    return Net(), mean_square, change


@right
def learning_rate_as_a_tensor_written_in_place():
    def change(step, optimizer):
        optimizer.param_groups[0]["lr"].mul_(0.9)

    return (
        Net(),
        mean_square,
        change,
        lambda m: torch.optim.SGD(m.parameters(), lr=torch.tensor(0.05, dtype=torch.float64), foreach=False),
    )


@right
def betas_of_adam():
    def change(step, optimizer):
        optimizer.param_groups[0]["betas"] = (0.9 - step / 50, 0.999)

    return Net(), mean_square, change, lambda m: torch.optim.Adam(m.parameters(), lr=0.01)


@right
def flags_of_the_optimizer():
    def change(step, optimizer):
        group = optimizer.param_groups[0]
        group["nesterov"], group["foreach"], group["maximize"] = step > 2, step % 2 == 0, step == 5

    return Net(), mean_square, change


@right
def parameter_is_taken_out_of_the_optimizer():
    model = Net()

    def change(step, optimizer):
        if step == 4:
            optimizer.param_groups[0]["params"] = [p for p in model.parameters() if p.dim() > 1]

    return model, mean_square, change


@right
def reinitialised_layer():
    model = Net()
    return model, mean_square, at(4, lambda: (torch.manual_seed(5), model.second.reset_parameters()))


@right
def parameters_from_a_vector():
    model = Net()

    def change():
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(vector.detach() * 0.5, model.parameters())

    return model, mean_square, at(4, change)


@right
def pruning_and_its_removal():
    model = Net()

    def change(step):
        if step == 2:
            prune.l1_unstructured(model.second, "weight", amount=0.5)
        if step == 5:
            prune.l1_unstructured(model.second, "bias", amount=1)

    def loss(m, x):
        return mean_square(m, x) + m.second.weight.square().sum()

    return model, loss, change


@right
def weight_norm_of_old():
    model = Net()
    weight_norm(model.second)
    return model, mean_square, None


@right
def spectral_norm_in_evaluation():
    model = Net()
    spectral_norm(model.second)
    model.eval()
    return model, mean_square, None


@right
def a_parametrization_is_put_on_later():
    class Doubled(nn.Module):
        def forward(self, w):
            return w * 2

    model = Net()
    return (
        model,
        mean_square,
        at(3, lambda: parametrize.register_parametrization(model.second, "weight", Doubled())),
    )


@right
def a_parametrization_is_left_with_its_value():
    class Shifted(nn.Module):
        shift = 0.5

        def forward(self, w):
            return w + self.shift

    model = Net()
    parametrize.register_parametrization(model.second, "weight", Shifted())

    def change(step):
        if step == 3:
            model.second.parametrizations.weight[0].shift = -0.5

    return model, mean_square, change


@right
def orthogonal_weights():
    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3, bias=False)), nn.Linear(3, 2)).double()
    return model, mean_square, None


@right
def stochastic_depth_by_a_list_of_kept_layers():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4)).double()
            self.kept = [0, 1, 2, 3]

        def forward(self, x):
            for index in self.kept:
                x = torch.tanh(self.layers[index](x))
            return x

    model = Deep()
    return (
        model,
        mean_square,
        lambda step: model.kept.__setitem__(slice(None), [[0, 1, 2, 3], [3, 0], [1]][step % 3]),
    )


@right
def layers_are_popped_and_appended():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU()).double()

    def change(step):
        if step == 3:
            model.pop(2)
        if step == 5:
            model.append(nn.Softplus())

    return model, mean_square, change


@right
def parameter_dictionary_is_extended():
    class Tasks(Net):
        def __init__(self):
            super().__init__()
            self.scales = nn.ParameterDict({"a": torch.ones(2).double()})

        def forward(self, x):
            return super().forward(x) * sum(scale for scale in self.scales.values())

    model = Tasks()

    def change(step, optimizer):
        if step == 3:
            model.scales["b"] = nn.Parameter(torch.full((2,), 0.5).double())
            optimizer.add_param_group({"params": [model.scales["b"]]})

    return model, mean_square, change


@right
def buffers_registered_and_deleted():
    class Shifted(Net):
        def forward(self, x):
            shift = getattr(self, "shift", None)
            return super().forward(x) if shift is None else super().forward(x) + shift

    model = Shifted()

    def change(step):
        if step == 2:
            model.register_buffer("shift", torch.ones(2).double(), persistent=False)
        if step == 4:
            model.shift = model.shift * 2
        if step == 6:
            del model.shift

    return model, mean_square, change


@right
def forward_is_wrapped_for_timing():
    model = Net()

    def change():
        inner = model.first.forward

        @functools.wraps(inner)
        def timed(*args, **kwargs):
            start = time.perf_counter()
            result = inner(*args, **kwargs)
            timed.spent += time.perf_counter() - start > 1e6
            return result * timed.factor

        timed.spent, timed.factor = 0, 1.0
        model.first.forward = timed

    def later(step):
        if step == 2:
            change()
        if step == 5:
            model.first.forward.factor = 0.5

    return model, mean_square, later


@right
def a_method_of_a_base_class_is_patched(stack):
    class Base(Net):
        def activation(self, h):
            return torch.tanh(h)

        def forward(self, x):
            return self.second(self.activation(self.first(x)))

    class Derived(Base):
        pass

    def change():
        Base.activation = lambda self, h: F.relu(h)

    return Derived(), mean_square, at(3, change)


@right
def a_class_attribute_is_shadowed():
    class Scaled(Net):
        scale = 2.0

        def forward(self, x):
            return super().forward(x) * self.scale

    model = Scaled()

    def change(step):
        if step == 2:
            model.scale = 3.0
        if step == 4:
            del model.scale
        if step == 6:
            Scaled.scale = 0.25

    return model, mean_square, change


@right
def an_enum_and_a_flag():
    class Mode(enum.Enum):
        PLAIN = 1
        SQUARED = 2

    class Use(enum.Flag):
        BIAS = 1
        SCALE = 2

    class Modal(Net):
        mode, use = Mode.PLAIN, Use.BIAS

        def forward(self, x):
            y = super().forward(x)
            y = y.square() if self.mode is Mode.SQUARED else y
            y = y * 2 if Use.SCALE in self.use else y
            return y + 1 if Use.BIAS in self.use else y

    model = Modal()

    def change(step):
        if step == 2:
            model.mode = Mode.SQUARED
        if step == 4:
            model.use = Use.SCALE | Use.BIAS
        if step == 6:
            model.use = Use.SCALE

    return model, mean_square, change


@right
def dataclasses_frozen_and_nested():
    @dataclasses.dataclass(frozen=True)
    class Inner:
        scale: float = 1.0

    @dataclasses.dataclass(slots=True)
    class Outer:
        inner: Inner = dataclasses.field(default_factory=Inner)
        shifts: list = dataclasses.field(default_factory=lambda: [0.0, {"x": 0.0}])

    config = Outer()

    def change(step):
        if step == 2:
            config.inner = dataclasses.replace(config.inner, scale=0.5)
        if step == 4:
            config.shifts[1]["x"] = 3.0
        if step == 6:
            object.__setattr__(config.inner, "scale", 4.0)

    return (
        Net(),
        lambda m, x: mean_square(m, x) * config.inner.scale + (m(x) + config.shifts[1]["x"]).abs().mean(),
        change,
    )


@right
def a_property_with_a_setter():
    class Model(Net):
        _t = 1.0

        @property
        def temperature(self):
            return self._t

        @temperature.setter
        def temperature(self, value):
            self._t = value * 2

        def forward(self, x):
            return super().forward(x) / self.temperature

    model = Model()
    return model, mean_square, lambda step: setattr(model, "temperature", 1 + step / 4)


@right
def a_descriptor_with_values_of_its_own():
    class Hyper:
        def __init__(self):
            self.values = {}

        def __get__(self, instance, owner):
            return self.values.get("all", 1.0)

        def __set__(self, instance, value):
            self.values["all"] = value

    class Model(Net):
        gain = Hyper()

        def forward(self, x):
            return super().forward(x) * self.gain

    model = Model()
    return model, mean_square, lambda step: setattr(model, "gain", 1 + step / 4)


@right
def attributes_by_getattr_of_a_dictionary():
    class Config:
        def __init__(self):
            self.__dict__["_items"] = {"scale": 1.0}

        def __getattr__(self, name):
            return self._items[name]

        def __setattr__(self, name, value):
            self._items[name] = value

    config = Config()
    return (
        Net(),
        lambda m, x: mean_square(m, x) * config.scale,
        lambda step: setattr(config, "scale", 1 + step / 4),
    )


@right
def getattr_by_a_computed_name():
    class Model(Net):
        def __init__(self):
            super().__init__()
            self.which = "a"
            self.scale_a, self.scale_b = 1.0, 3.0

        def forward(self, x):
            return super().forward(x) * getattr(self, f"scale_{self.which}")

    model = Model()

    def change(step):
        model.which = "ab"[step // 2 % 2]
        if step == 6:
            model.scale_a = 7.0

    return model, mean_square, change


@right
def a_partial_that_is_replaced_and_one_whose_dictionary_changes():
    options = {"beta": 1.0}
    box = {"loss": functools.partial(F.smooth_l1_loss, **options)}

    def change(step):
        if step == 3:
            box["loss"] = functools.partial(F.smooth_l1_loss, beta=0.1)
        if step == 5:
            box["loss"].keywords["beta"] = 5.0

    return Net(), lambda m, x: box["loss"](m(x), torch.ones(5, 2).double()), change


@right
def a_cached_function_that_is_cleared():
    settings = {"width": 1.0}

    @functools.lru_cache
    def table(n):
        return torch.arange(n).double() * settings["width"]

    def change(step):
        if step == 3:
            settings["width"] = 2.0
        if step == 5:
            table.cache_clear()

    return Net(), lambda m, x: (m(x) + table(2)).square().mean(), change


@right
def a_cached_property():
    class Model(Net):
        width = 1.0

        @functools.cached_property
        def mask(self):
            return torch.tensor([1.0, self.width], dtype=torch.float64)

        def forward(self, x):
            return super().forward(x) * self.mask

    model = Model()

    def change(step):
        if step == 3:
            model.width = 5.0
        if step == 5:
            del model.mask

    return model, mean_square, change


@right
def nested_containers_of_all_kinds():
    Pair = collections.namedtuple("Pair", "scale shift")
    config = {
        "list": [(1.0, {"deep": [1.0]})],
        "default": collections.defaultdict(lambda: 1.0),
        "ordered": collections.OrderedDict(a=1.0, b=2.0),
        "counter": collections.Counter(a=1),
        "chain": collections.ChainMap({"k": 1.0}, {"j": 2.0}),
        "pair": Pair(1.0, 0.0),
        "deque": collections.deque([1.0, 2.0], maxlen=2),
        "set": {1},
        "frozen": frozenset({1}),
    }

    def loss(m, x):
        c = config
        weight = (
            c["list"][0][1]["deep"][0]
            + c["default"]["x"]
            + next(iter(c["ordered"].values()))
            + c["counter"]["a"]
        )
        weight += c["chain"]["k"] + c["pair"].scale + c["deque"][0] + len(c["set"]) + len(c["frozen"])
        return mean_square(m, x) * weight

    def change(step):
        acts = [
            lambda: config["list"][0][1]["deep"].__setitem__(0, 2.0),
            lambda: config["default"].update(x=3.0),
            lambda: config["ordered"].move_to_end("a"),
            lambda: config["counter"].update("aaa"),
            lambda: config["chain"].maps.reverse() or config["chain"].update(k=9.0),
            lambda: config.update(pair=config["pair"]._replace(scale=4.0)),
            lambda: config["deque"].append(7.0),
            lambda: (config["set"].add(5), config.update(frozen=frozenset({1, 2, 3}))),
        ]
        acts[step]()

    return Net(), loss, change


@right
def decimals_fractions_and_dates():
    box = {"d": decimal.Decimal("1.0"), "f": fractions.Fraction(1, 2), "t": datetime.date(2024, 1, 1)}

    def loss(m, x):
        return mean_square(m, x) * float(box["d"]) * float(box["f"]) * box["t"].day

    def change(step):
        if step == 2:
            box["d"] = decimal.Decimal("2.5")
        if step == 4:
            box["f"] = fractions.Fraction(3, 2)
        if step == 6:
            box["t"] += datetime.timedelta(days=3)

    return Net(), loss, change


@right
def scalars_and_arrays_of_numpy():
    box = {
        "scalar": numpy.float64(1.0),
        "array": numpy.ones(2),
        "structured": numpy.zeros(1, dtype=[("w", "f8")]),
    }

    def loss(m, x):
        weight = box["scalar"] * box["array"][0] + box["structured"]["w"][0]
        return mean_square(m, x) * float(weight)

    def change(step):
        if step == 2:
            box["scalar"] = numpy.float64(2.0)
        if step == 4:
            box["array"][0] = 3.0
        if step == 6:
            box["structured"]["w"][0] = 5.0

    return Net(), loss, change


@right
def an_object_array_and_a_view_of_an_array():
    base = numpy.ones(4)
    objects = numpy.array([{"w": 1.0}, None], dtype=object)
    view = base[::2]

    def change(step):
        if step == 3:
            base[0] = 5.0
        if step == 5:
            objects[0] = {"w": 2.0}
        if step == 6:
            objects[0]["w"] = 9.0

    return Net(), lambda m, x: mean_square(m, x) * float(view[0]) * objects[0]["w"], change


@right
def a_masked_array_by_its_mask():
    masked = numpy.ma.array([1.0, 5.0], mask=[False, False])
    return (
        Net(),
        lambda m, x: mean_square(m, x) * float(masked.mean()),
        at(3, lambda: masked.__setitem__(1, numpy.ma.masked)),
    )


@right
def a_table_of_columns():
    class Frame:  # as pandas': blocks behind attributes by name
        def __init__(self):
            self._blocks = [numpy.array([1.0, 2.0])]
            self._columns = ["w"]

        def __getitem__(self, name):
            return self._blocks[self._columns.index(name)]

    frame = Frame()
    return (
        Net(),
        lambda m, x: mean_square(m, x) * float(frame["w"].mean()),
        at(3, lambda: frame["w"].__setitem__(0, 9.0)),
    )


@right
def environment_variables(stack):
    stack.callback(os.environ.pop, "STRANGER", None)
    os.environ["STRANGER"] = "1.0"
    return (
        Net(),
        lambda m, x: mean_square(m, x) * float(os.getenv("STRANGER", "0")),
        lambda step: os.environ.update(STRANGER=str(1 + step // 3)),
    )


@right
def environment_by_another_name(stack):
    from os import environ as variables

    stack.callback(os.environ.pop, "STRANGER", None)
    os.environ["STRANGER"] = "1.0"

    def read(name):
        return float(variables.get(name))

    return (
        Net(),
        lambda m, x: mean_square(m, x) * read("STRANGER"),
        at(4, lambda: os.environ.update(STRANGER="7")),
    )


@right
def a_file_of_settings(tmp_path):
    path = tmp_path / "settings.json"
    path.write_text('{"w": 1.0}')
    return (
        Net(),
        lambda m, x: mean_square(m, x) * json.loads(path.read_text())["w"],
        at(3, lambda: path.write_text('{"w": 2.0}')),
    )


@right
def a_file_that_is_there_or_not(tmp_path):
    path = tmp_path / "stop"
    path.unlink(missing_ok=True)
    return (
        Net(),
        lambda m, x: mean_square(m, x) * (2 if path.exists() else 1),
        at(3, lambda: path.write_text("")),
    )


@right
def a_file_by_os_and_open(tmp_path):
    path = str(tmp_path / "w.txt")
    with open(path, "w") as file:
        file.write("1")

    def loss(m, x):
        if os.path.isfile(path):
            with open(path) as file:
                return mean_square(m, x) * float(file.read())
        return mean_square(m, x)

    def change(step):
        if step == 3:
            with open(path, "w") as file:
                file.write("3")
        if step == 5:
            os.remove(path)

    return Net(), loss, change


@right
def files_of_a_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    for each in folder.iterdir():
        each.unlink()

    def change(step):
        if step in (2, 5):
            (folder / str(step)).write_text("")

    return Net(), lambda m, x: mean_square(m, x) * (1 + len(os.listdir(folder))), change


@right
def a_context_variable():
    weight = contextvars.ContextVar("weight", default=1.0)
    return Net(), lambda m, x: mean_square(m, x) * weight.get(), at(3, lambda: weight.set(2.0))


LEVEL = {"deep": [1.0]}


@right
def globals_by_subscript(stack):
    def restore():
        LEVEL["deep"][0] = 1.0

    stack.callback(restore)
    return (
        Net(),
        lambda m, x: mean_square(m, x) * globals()["LEVEL"]["deep"][0],
        at(3, lambda: LEVEL["deep"].__setitem__(0, 2.0)),
    )


@right
def a_module_imported_inside(tmp_path, stack):
    (tmp_path / "strange_settings.py").write_text("RATE = 1.0\nNESTED = {'a': [1.0]}\n")
    sys.path.insert(0, str(tmp_path))
    stack.callback(sys.path.remove, str(tmp_path))
    sys.modules.pop("strange_settings", None)

    def loss(m, x):
        import strange_settings
        from strange_settings import NESTED

        return mean_square(m, x) * strange_settings.RATE * NESTED["a"][0]

    def change(step):
        import strange_settings

        if step == 3:
            strange_settings.RATE = 2.0
        if step == 5:
            strange_settings.NESTED["a"][0] = 4.0

    return Net(), loss, change


@right
def weak_dictionaries():
    class Key:
        pass

    key = Key()
    weights, values = weakref.WeakKeyDictionary({key: 1.0}), weakref.WeakValueDictionary()

    def loss(m, x):
        return mean_square(m, x) * weights[key] * (2 if "k" in values else 1)

    def change(step):
        if step == 3:
            weights[key] = 2.0
        if step == 5:
            values["k"] = key

    return Net(), loss, change


@right
def a_mapping_proxy():
    inner = {"w": 1.0, "list": [1.0]}
    proxy = types.MappingProxyType(inner)

    def change(step):
        if step == 3:
            inner["w"] = 2.0
        if step == 5:
            inner["list"][0] = 3.0

    return Net(), lambda m, x: mean_square(m, x) * proxy["w"] * proxy["list"][0], change


@right
def an_attribute_of_a_metaclass():
    class Meta(type):
        gain = 1.0

        @property
        def doubled(cls):
            return cls.gain * 2

    class Settings(metaclass=Meta):
        pass

    return Net(), lambda m, x: mean_square(m, x) * Settings.doubled, at(3, lambda: setattr(Meta, "gain", 3.0))


@right
def number_of_threads(stack):
    before = torch.get_num_threads()
    stack.callback(torch.set_num_threads, before)
    torch.set_num_threads(1)
    return (
        Net(),
        lambda m, x: mean_square(m, x) * torch.get_num_threads(),
        at(3, lambda: torch.set_num_threads(2)),
    )


@right
def default_dtype(stack):
    stack.callback(torch.set_default_dtype, torch.float32)
    return (
        Net(),
        lambda m, x: mean_square(m, x) * torch.full((), 0.1).double(),
        at(3, lambda: torch.set_default_dtype(torch.float64)),
    )


@right
def flags_of_backends(stack):
    for flag in ("enable_flash_sdp", "enable_math_sdp"):
        stack.callback(getattr(torch.backends.cuda, flag), True)
    stack.callback(torch.use_deterministic_algorithms, False)
    stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())

    def loss(m, x):
        weight = 1 + torch.are_deterministic_algorithms_enabled() + 2 * torch.backends.mkldnn.enabled
        weight += 3 * torch.backends.cuda.flash_sdp_enabled() + len(torch.get_float32_matmul_precision())
        return mean_square(m, x) * weight

    def change(step):
        if step == 2:
            torch.use_deterministic_algorithms(True)
        if step == 4:
            torch.backends.cuda.enable_flash_sdp(False)
        if step == 6:
            torch.set_float32_matmul_precision("medium")

    return Net(), loss, change


@right
def anomaly_and_checks_of_autograd(stack):
    stack.callback(torch.autograd.set_detect_anomaly, False)
    return (
        Net(),
        lambda m, x: mean_square(m, x) * (2 if torch.is_anomaly_enabled() else 1),
        at(3, lambda: torch.autograd.set_detect_anomaly(True)),
    )


@right
def autocast_inside_that_is_switched():
    class Model(Net):
        half = False

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
                return super().forward(x.float()).double()

    model = Model().float()
    return model, mean_square, lambda step: setattr(model, "half", step in (2, 3, 6))


@right
def gradient_checkpointing_is_switched_on():
    class Model(Net):
        checkpointing = False

        def forward(self, x):
            if self.checkpointing:
                return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)
            return super().forward(x)

    import torch.utils.checkpoint

    model = Model()
    return model, mean_square, at(3, lambda: setattr(model, "checkpointing", True))


@right
def hooks_of_all_kinds():
    model = Net()
    handles = []

    def change(step):
        if step == 1:
            handles.append(
                model.first.register_forward_pre_hook(
                    lambda module, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True
                )
            )
        if step == 2:
            handles.append(model.second.register_forward_hook(lambda m, a, out: out + 1, prepend=True))
        if step == 3:
            handles.append(
                model.first.register_full_backward_hook(
                    lambda m, gi, go: tuple(g if g is None else g * 2 for g in gi)
                )
            )
        if step == 4:
            handles.append(
                model.second.register_full_backward_pre_hook(lambda m, go: tuple(g * 0.5 for g in go))
            )
        if step == 5:
            handles.append(model.second.weight.register_hook(lambda g: g.clamp(-0.1, 0.1)))
        if step == 6:
            for handle in handles[::2]:
                handle.remove()

    return model, mean_square, change


@right
def a_hook_with_a_setting():
    model = Net()
    options = {"noise": 0.0}
    model.first.register_forward_hook(lambda m, a, out: out + options["noise"])
    return model, mean_square, lambda step: options.update(noise=step // 3 * 0.5)


@right
def saved_tensors_go_through_hooks():
    scale = [1.0]

    def loss(m, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * scale[0]):
            return mean_square(m, x)

    return Net(), loss, at(3, lambda: scale.__setitem__(0, 2.0))


@right
def a_function_of_autograd_with_class_state():
    class Scale(torch.autograd.Function):
        factor = 1.0

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * Scale.factor

    return (
        Net(),
        lambda m, x: Scale.apply(m(x)).square().mean(),
        at(3, lambda: setattr(Scale, "factor", -1.0)),
    )


@right
def gradient_reversal_by_an_argument():
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, strength):
            ctx.strength = strength
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return -ctx.strength * gradient, None

    class Model(Net):
        strength = 0.1

        def forward(self, x):
            return super().forward(x) + Reverse.apply(self.first(x), self.strength)[:, :2]

    model = Model()
    return model, mean_square, lambda step: setattr(model, "strength", 0.1 + step / 7)


@right
def functional_call_with_other_weights():
    model = Net()
    scale = {"w": 1.0}

    def loss(m, x):
        weights = {name: each * scale["w"] for name, each in m.named_parameters()}
        return torch.func.functional_call(m, weights, (x,)).square().mean()

    return model, loss, lambda step: scale.update(w=1 + step // 2)


@right
def a_gradient_penalty():
    strength = {"now": 0.0}

    def loss(m, x):
        leaf = x.clone().requires_grad_()
        y = m(leaf)
        [gradient] = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        return y.square().mean() + strength["now"] * (gradient.norm(dim=1) - 1).square().mean()

    return Net(), loss, lambda step: strength.update(now=step / 3)


@right
def perturbed_inputs():
    epsilon = types.SimpleNamespace(value=0.0)

    def loss(m, x):
        delta = torch.zeros_like(x, requires_grad=True)
        [gradient] = torch.autograd.grad(m(x + delta).square().mean(), delta)
        return m(x + epsilon.value * gradient.sign()).square().mean()

    return Net(), loss, lambda step: setattr(epsilon, "value", step / 30)


@right
def vmap_over_samples():
    factor = [1.0]
    return (
        Net(),
        lambda m, x: torch.vmap(lambda row: m(row).square().sum() * factor[0])(x).mean(),
        at(3, lambda: factor.__setitem__(0, 2.0)),
    )


@right
def tensors_printed_otherwise(stack):
    stack.callback(torch.set_printoptions, profile="default")
    return Net(), mean_square, at(3, lambda: torch.set_printoptions(precision=2))


@right
def running_statistics_and_their_momentum():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()

    def change(step):
        if step == 2:
            model[1].momentum = 0.5
        if step == 4:
            model[1].track_running_stats = False
        if step == 5:
            model[1].reset_running_stats()
        if step == 6:
            model[1].eval()
        if step == 7:
            model[1].eps = 0.1

    return model, mean_square, change


@right
def options_of_modules():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(3)
            self.conv = nn.Conv1d(1, 2, 3, padding=1)
            self.act = nn.LeakyReLU(0.1)
            self.double()

        def forward(self, x):
            return self.act(self.conv(self.norm(x)[:, None])).flatten(1)

    model = Model()

    def change(step):
        if step == 2:
            model.act.negative_slope = 0.5
        if step == 3:
            model.norm.eps = 0.5
        if step == 5:
            model.conv.stride, model.conv.padding = (2,), (2,)
        if step == 6:
            model.conv.padding_mode, model.conv._reversed_padding_repeated_twice = "circular", [1, 1]

    return model, mean_square, change


@right
def an_itertools_cycle_between_steps():
    cycle = itertools.cycle([1.0, 2.0, 3.0])
    now = {}
    return Net(), lambda m, x: mean_square(m, x) * now["w"], lambda step: now.update(w=next(cycle))


@right
def annealed_by_a_closure_that_the_loop_rebinds():
    beta = 0.0

    def change(step):
        nonlocal beta
        beta = min(1.0, step / 5)

    def loss(m, x):
        y = m(x)
        return y.square().mean() + beta * y.abs().mean()

    return Net(), loss, change


@right
def a_step_counter_that_the_loop_keeps_and_a_warmup_in_forward():
    class Model(Net):
        global_step = 0

        def forward(self, x):
            weight = min(1.0, self.global_step / 4)
            return super().forward(x) * weight + (0.5 if self.global_step > 5 else 0.25)

    model = Model()
    return model, mean_square, lambda step: setattr(model, "global_step", step)


@right
def teacher_forcing_by_a_ratio_of_the_loop():
    box = {"force": True}
    return (
        Net(),
        lambda m, x: (m(x) + (x[:, :2] if box["force"] else m(x).detach())).square().mean(),
        lambda step: box.update(force=step % 3 != 0),
    )


@right
def class_weights_from_counts():
    counts = torch.ones(2, dtype=torch.float64)

    def loss(m, x):
        return F.cross_entropy(m(x), (x[:, 0] > 0).long(), weight=counts.sum() / counts)

    return Net(), loss, lambda step: counts.__setitem__(step % 2, step + 2.0)


@right
def targets_kept_by_index():
    memory = torch.zeros(3, 2, dtype=torch.float64)
    box = {"row": 0}

    def loss(m, x):
        y = m(x)
        memory[box["row"]] = y.detach().mean(0)
        return (y - memory.mean(0) - 1).square().mean()

    return Net(), loss, lambda step: box.update(row=step % 3)


@right
def a_queue_of_negatives():
    class Queue(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.ones(10, 2).double())
            self.register_buffer("at", torch.zeros(1, dtype=torch.long))

        def forward(self, x):
            y = super().forward(x)
            scores = y @ self.queue.clone().T
            with torch.no_grad():
                where = (self.at + torch.arange(len(x))) % 10
                self.queue.index_copy_(0, where, y.detach())
                self.at.copy_((self.at + len(x)) % 10)
            return scores

    return Queue(), mean_square, None


@right
def a_method_is_chosen_by_name():
    class Model(Net):
        how = "plain"

        def plain(self, y):
            return y

        def squared(self, y):
            return y.square()

        def forward(self, x):
            return operator.methodcaller(self.how, super().forward(x))(self)

    model = Model()
    return model, mean_square, at(4, lambda: setattr(model, "how", "squared"))


@right
def a_dispatch_on_types():
    @functools.singledispatch
    def weigh(value):
        return 1.0

    box = {"value": 1}
    weigh.register(int)(lambda value: 2.0)

    def change(step):
        if step == 2:
            box["value"] = "text"
        if step == 4:
            weigh.register(str)(lambda value: 5.0)

    return Net(), lambda m, x: mean_square(m, x) * weigh(box["value"]), change


@right
def a_decorator_with_a_flag():
    def scaled(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) * wrapper.scale

        wrapper.scale = 1.0
        return wrapper

    @scaled
    def loss(m, x):
        return mean_square(m, x)

    return Net(), loss, at(3, lambda: setattr(loss, "scale", 3.0))


@right
def a_callable_object_as_the_loss():
    class Loss:
        __slots__ = ("weight", "terms")

        def __init__(self):
            self.weight, self.terms = 1.0, [lambda y: y.square().mean()]

        def __call__(self, m, x):
            return sum(term(m(x)) for term in self.terms) * self.weight

    loss = Loss()

    def change(step):
        if step == 2:
            loss.weight = 2.0
        if step == 4:
            loss.terms.append(lambda y: y.abs().mean())
        if step == 6:
            Loss.__call__ = lambda self, m, x: self.terms[0](m(x))

    return Net(), loss, change


@right
def code_and_defaults_of_a_function_are_replaced():
    def term(y, power=2):
        return y.abs().pow(power).mean()

    def other(y, power=2):
        return y.abs().pow(power).sum()

    def change(step):
        if step == 2:
            term.__defaults__ = (3,)
        if step == 5:
            term.__code__ = other.__code__

    return Net(), lambda m, x: term(m(x)), change


@right
def a_type_that_is_generic_and_one_that_is_typed():
    class Weights(typing.TypedDict):
        a: float

    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, value):
            self.value = value

    box = Box[Weights](Weights(a=1.0))
    return Net(), lambda m, x: mean_square(m, x) * box.value["a"], at(3, lambda: box.value.update(a=2.0))


@right
def output_of_a_program_between_steps():
    box = {}

    def change(step):
        if step % 4 == 0:
            out = subprocess.run(["echo", str(1 + step)], capture_output=True, text=True, check=True).stdout
            box["w"] = float(out)

    return Net(), lambda m, x: mean_square(m, x) * box["w"], change


@right
def statistics_of_a_history_that_the_loop_keeps():
    history = [1.0]
    return (
        Net(),
        lambda m, x: mean_square(m, x) * statistics.fmean(history[-3:]),
        lambda step: history.append(1 + step / 5),
    )


@right
def a_thread_of_the_program_changes_a_setting():
    box = {"w": 1.0}

    def change(step):
        thread = threading.Thread(target=lambda: box.update(w=1 + step / 4))
        thread.start()
        thread.join()

    return Net(), lambda m, x: mean_square(m, x) * box["w"], change


@right
def a_barlow_of_two_views():
    flip = [False]

    def loss(m, x):
        a, b = m(x), m(x.flip(0) if flip[0] else x * 0.9)
        c = (a - a.mean(0)).T @ (b - b.mean(0)) / len(x)
        return (c - torch.eye(2).double()).square().sum()

    return Net(), loss, lambda step: flip.__setitem__(0, step % 2 == 1)


@right
def gradients_are_kept_out_by_a_context():
    box = {"frozen": False}

    def loss(m, x):
        with torch.set_grad_enabled(not box["frozen"]):
            h = torch.tanh(m.first(x))
        return m.second(h).square().mean()

    return Net(), loss, lambda step: box.update(frozen=step in (2, 5))


@right
def state_goes_back_to_a_snapshot():
    model = Net()
    kept = {}

    def change(step, optimizer):
        if step == 2:
            kept["model"] = copy.deepcopy(model.state_dict())
            kept["optimizer"] = copy.deepcopy(optimizer.state_dict())
        if step == 5:
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])

    return model, mean_square, change


@right
def weights_tied_later():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    return model, mean_square, at(3, lambda: setattr(model[2], "weight", model[0].weight))


@right
def attributes_of_a_batch_that_is_a_tensor():
    def loss(m, x):
        return mean_square(m, x) * getattr(x, "weight", 2.0)

    return Net(), loss, lambda step, optimizer, x: setattr(x, "weight", 1 + step // 3)


@right
def a_generator_function_of_layers():
    class Model(Net):
        order = (0, 1)

        def stages(self):
            for index in self.order:
                yield [self.first, nn.Identity()][index]

        def forward(self, x):
            for stage in self.stages():
                x = stage(x)
            return self.second(x)

    model = Model()
    return model, mean_square, at(3, lambda: setattr(model, "order", (1, 0, 1)))


@right
def the_clock_between_steps():
    start = time.monotonic()
    box = {"late": False}

    def change(step):
        box["late"] = time.monotonic() - start > 1e9 or step > 4

    return Net(), lambda m, x: mean_square(m, x) * (2 if box["late"] else 1), change


@right
def the_level_of_a_logger():
    log = logging.getLogger("stranger")
    log.setLevel(logging.INFO)

    def loss(m, x):
        return mean_square(m, x) * (2 if log.isEnabledFor(logging.DEBUG) else 1)

    return Net(), loss, at(3, lambda: log.setLevel(logging.DEBUG))


@right
def arguments_of_the_program(stack):
    stack.callback(sys.argv.__setitem__, slice(None), list(sys.argv))

    def loss(m, x):
        return mean_square(m, x) * (2 if "--double" in sys.argv else 1)

    return Net(), loss, at(3, lambda: sys.argv.append("--double"))


@right
def a_view_of_an_array_array_and_a_structure_of_c():
    class Weights(ctypes.Structure):
        _fields_ = [("w", ctypes.c_double)]

    numbers, weights = array.array("d", [1.0, 2.0]), Weights(1.0)
    view = memoryview(numbers)

    def change(step):
        if step == 3:
            numbers[0] = 5.0
        if step == 5:
            weights.w = 0.5

    return Net(), lambda m, x: mean_square(m, x) * view[0] * weights.w, change


@right
def a_registry_behind_a_classmethod():
    class Registry:
        items = {"w": 1.0}

        @classmethod
        def get(cls, name):
            return cls.items[name]

    return (
        Net(),
        lambda m, x: mean_square(m, x) * Registry.get("w"),
        at(3, lambda: Registry.items.update(w=4.0)),
    )


@right
def settings_for_the_time_of_a_with():
    class Settings:
        w = 1.0

    @contextlib.contextmanager
    def using(w):
        before, Settings.w = Settings.w, w
        try:
            yield
        finally:
            Settings.w = before

    now = [1.0]

    def loss(m, x):
        with using(now[0] * 2):
            return mean_square(m, x) * Settings.w

    return Net(), loss, lambda step: now.__setitem__(0, 1 + step // 3)


@right
def settings_of_a_thread_and_a_path_of_attributes():
    local, config = threading.local(), types.SimpleNamespace(a=types.SimpleNamespace(b=1.0))
    local.w = 1.0
    read = operator.attrgetter("a.b")

    def change(step):
        if step == 3:
            local.w = 3.0
        if step == 5:
            config.a.b = 0.5

    return Net(), lambda m, x: mean_square(m, x) * local.w * read(config), change


@right
def parameters_by_a_pattern_of_names():
    box = {"pattern": re.compile("first")}

    def loss(m, x):
        chosen = [each for name, each in m.named_parameters() if box["pattern"].search(name)]
        return mean_square(m, x) + sum(each.square().sum() for each in chosen)

    return Net(), loss, at(3, lambda: box.update(pattern=re.compile("second")))


@right
def a_hidden_state_that_the_loop_resets():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out, self.h = nn.GRUCell(3, 4).double(), nn.Linear(4, 2).double(), None

        def forward(self, x):
            h = self.cell(x, torch.zeros(len(x), 4).double() if self.h is None else self.h)
            self.h = h.detach()
            return self.out(h)

    model = Recurrent()
    return model, mean_square, lambda step: setattr(model, "h", None) if step % 3 == 0 else None


@right
def frozen_statistics():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    return model, mean_square, lambda step: (model.train(), model[1].train(step < 3))


@right
def numbers_drawn_anew_by_the_epoch():
    box = {"epoch": 0}

    def loss(m, x):
        noise = numpy.random.default_rng(box["epoch"]).standard_normal(2)
        return (m(x) + torch.from_numpy(noise)).square().mean()

    return Net(), loss, lambda step: box.update(epoch=step)


@right
def a_threshold_behind_a_type():
    box = types.SimpleNamespace(v=0.1)

    def loss(m, x):
        return mean_square(m, x) * box.v * (3 if type(box.v) is float and box.v > 0.55 else 1)

    return Net(), loss, lambda step: setattr(box, "v", 0.1 * (step + 1))


@right
def a_threshold_behind_numpy_and_a_schedule_by_index():
    box, table = types.SimpleNamespace(v=0.1, epoch=0), [1.0] * 5 + [2.0] * 3

    def loss(m, x):
        return mean_square(m, x) * box.v * (3 if numpy.float64(box.v) > 0.55 else 1) * table[box.epoch]

    def change(step):
        box.v, box.epoch = 0.1 * (step + 1), step

    return Net(), loss, change


# ---- What a graph cannot do


@refused
def the_seed_is_read():
    return Net(), lambda m, x: mean_square(m, x) * (torch.initial_seed() % 7 + 1), None


@refused
def a_logger_counts_calls_inside():
    class Model(Net):
        seen = 0

        def forward(self, x):
            self.seen += len(x)
            return super().forward(x) * (1 if self.seen < 20 else 2)

    return Model(), mean_square, None


@refused
def a_loss_scaler_that_reads_its_loss():
    class Scaler:
        scale = 4.0

    def loss(m, x):
        value = mean_square(m, x)
        if value.item() < 0.1:
            Scaler.scale *= 0.5
        return value * Scaler.scale

    return Net(), loss, None


@refused
def an_open_file_is_read_line_by_line(tmp_path):
    path = tmp_path / "lines"
    path.write_text("\n".join(str(1 + i) for i in range(100)))
    file = open(path)  # noqa: SIM115
    return Net(), lambda m, x: mean_square(m, x) * float(file.readline()), None


@refused
def a_file_is_written_in_forward(tmp_path):
    path = tmp_path / "log"

    def loss(m, x):
        with open(path, "a") as file:
            file.write("step\n")
        return mean_square(m, x)

    return Net(), loss, None


@refused
def a_generator_of_a_schedule():
    def weights():
        weight = 1.0
        while True:
            yield weight
            weight *= 0.9

    schedule = weights()
    return Net(), lambda m, x: mean_square(m, x) * next(schedule), None


@refused
def an_average_of_losses_in_python():
    class Model(Net):
        average = None

        def forward(self, x):
            y = super().forward(x)
            value = float(y.detach().abs().mean())
            self.average = value if self.average is None else 0.9 * self.average + 0.1 * value
            return y / self.average

    return Model(), mean_square, None


@refused
def threads_in_the_loss():
    def loss(m, x):
        results = []
        threads = [threading.Thread(target=lambda part=part: results.append(m(part))) for part in x.chunk(2)]
        for thread in threads:
            thread.start()
            thread.join()
        return torch.cat(results).square().mean()

    return Net(), loss, None


@refused
def the_clock_inside():
    start = time.time() - 1
    return Net(), lambda m, x: mean_square(m, x) * (time.time() - start), None


@pytest.mark.parametrize("probe", RIGHT.values(), ids=RIGHT.keys())
@pytest.mark.filterwarnings("ignore")
def test_it_is_followed(probe, tmp_path):
    assert outcome(probe, tmp_path) == ("right", "")


@pytest.mark.parametrize("probe", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.filterwarnings("ignore")
def test_it_is_refused_by_name(probe, tmp_path):
    assert outcome(probe, tmp_path)[0] == "refused"


def test_an_attribute_of_a_batch_that_is_no_number_is_refused_by_name():
    def loss(m, x):
        return mean_square(m, x) * x.mask.sum()

    model = Net()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    x = torch.randn(5, 3, dtype=torch.float64)
    x.mask = torch.ones(3)
    with pytest.raises(
        shoal.InvalidInput, match="item batch of the batch has an attribute mask, a Tensor; give"
    ):
        trainer.step(x)


def test_tensors_that_a_trainer_holds_are_not_swapped_and_train_on():
    model, other = Net(), nn.Linear(3, 4).double()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), mean_square)
    x = torch.randn(5, 3, dtype=torch.float64)
    trainer.step(x)
    with pytest.raises(RuntimeError, match="not holding references"):
        torch.utils.swap_tensors(model.first.weight, other.weight)
    wanted = mean_square(model, x).item()
    assert trainer.step(x).loss == pytest.approx(wanted)


def test_other_threads_have_torch_and_their_files_while_a_model_is_recorded(tmp_path):
    ended, rounds = threading.Event(), []

    def elsewhere():
        while not ended.is_set():
            (tmp_path / "log").write_text(f"line {len(rounds)}")
            other = threading.Thread(target=os.path.exists, args=(tmp_path / "log",))
            other.start()
            other.join()
            torch.initial_seed()
            assert isinstance(torch.ones(1), torch.FloatTensor)
            rounds.append(None)

    class Slow(Net):
        def forward(self, x):
            sum(range(50_000_000))  # for as long as the thread below needs, on a busy machine too
            return super().forward(x)

    model = Slow().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = shoal.Trainer(
        model, optimizer, lambda model, x: model(x).square().mean(), seed=0, spot_checks=-1
    )
    thread = threading.Thread(target=elsewhere, daemon=True)
    thread.start()
    began = time.monotonic()
    trainer.step(torch.ones(2, 3, dtype=torch.float64))
    recording = time.monotonic() - began
    assert thread.is_alive()
    assert rounds
    began = time.monotonic()
    trainer.step(torch.ones(2, 3, dtype=torch.float64))
    assert time.monotonic() - began < recording / 2  # the log was not taken for what the model reads
    assert thread.is_alive()
    ended.set()
    thread.join()


def test_what_a_program_put_in_the_place_of_open_stays(monkeypatch):
    def mine(*arguments, **named):
        return open(*arguments, **named)

    monkeypatch.setattr("builtins.open", mine)
    before = {name: vars(torch.Tensor).get(name) for name in ("new", "new_tensor", "tolist", "numpy")}
    trainers = []

    def train():
        model = Net().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainers.append(shoal.Trainer(model, optimizer, lambda model, x: model(x).square().mean(), seed=0))
        trainers[-1].step(torch.ones(2, 3, dtype=torch.float64))

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trainers) == 4
    assert builtins.open is mine
    assert {name: vars(torch.Tensor).get(name) for name in before} == before
