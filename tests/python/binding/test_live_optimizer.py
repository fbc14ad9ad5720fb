# SPDX-License-Identifier: Apache-2.0
# Above 400 lines: one test for each thing that may be done to an optimizer's state.
"""optimizer.state and param_groups are those of PyTorch's optimizer, whoever changes them between steps."""

import copy
from collections import OrderedDict, defaultdict

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import shoal


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def squared_error(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def pair(rows=6):
    return torch.randn(rows, 8).double(), torch.randn(rows, 4).double()


class Side:
    """A model and its optimizer, trained by eager PyTorch, or by a trainer where `trained`."""

    def __init__(self, trained, optimizer=adamw, model=None, loss=squared_error):
        self.trained, self.loss = trained, loss
        self.model = model or net()
        self.optimizer = optimizer(self.model.parameters())
        self.anew()

    def anew(self, model=None, loss=None):
        """Another trainer on the same optimizer."""
        self.trainer = None
        if self.trained:
            self.trainer = shoal.Trainer(model or self.model, self.optimizer, loss or self.loss)

    def eager(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def step(self, batch):
        return self.trainer.step(batch).loss if self.trained else self.eager(batch)


def both(script, optimizer=adamw, make=net, loss=squared_error):
    """Runs the script with eager PyTorch and with a trainer: losses, parameters and state are the same."""
    torch.manual_seed(0)
    batches = [pair() for _ in range(8)]
    sides = [Side(trained, optimizer, make(), loss) for trained in (False, True)]
    wanted, got = (
        [float(torch.as_tensor(value).detach()) for value in script(side, batches)] for side in sides
    )
    assert got == pytest.approx(wanted, rel=1e-9)
    eager, trained = sides
    torch.testing.assert_close(trained.model.state_dict(), eager.model.state_dict(), rtol=1e-9, atol=1e-12)
    same_live_state(trained.optimizer, eager.optimizer)
    return trained


def same_live_state(got, wanted):
    members = [[p for group in each.param_groups for p in group["params"]] for each in (got, wanted)]
    for mine, theirs in zip(*members, strict=True):
        assert list(got.state.get(mine, {})) == list(wanted.state.get(theirs, {}))
        torch.testing.assert_close(
            dict(got.state.get(mine, {})), dict(wanted.state.get(theirs, {})), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("optimizer", [adamw, sgd])
def test_state_is_live_after_each_step(optimizer):
    def script(side, batches):
        seen = []
        for batch in batches:
            yield side.step(batch)
            own = side.optimizer.state[side.model[0].weight]
            seen.append(next(iter(own.values())))
            yield from (value.abs().sum() for value in own.values())
        assert all(each is seen[0] for each in seen), "a tensor was replaced"

    both(script, optimizer)


def test_sgd_without_momentum_keeps_no_state():
    trained = both(
        lambda side, batches: [side.step(batch) for batch in batches],
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    assert not trained.optimizer.state


@pytest.mark.parametrize("optimizer", [adamw, sgd])
def test_a_trainer_made_anew_goes_on(optimizer):
    def script(side, batches):
        for batch in batches:
            yield side.step(batch)
            side.anew()

    both(script, optimizer)


def test_state_dict_is_there_when_the_trainer_has_gone():
    def script(side, batches):
        for batch in batches[:3]:
            yield side.step(batch)
        side.trainer = None
        another = copy.deepcopy(side.model)
        optimizer = adamw(another.parameters())
        optimizer.load_state_dict(side.optimizer.state_dict())
        side.model, side.optimizer = another, optimizer
        side.anew()
        yield from (side.step(batch) for batch in batches[3:])

    both(script)


@pytest.mark.parametrize("optimizer", [adamw, sgd])
@pytest.mark.parametrize("foreach", [True, False])
def test_eager_steps_between_those_of_the_trainer(optimizer, foreach):
    def make(parameters):
        made = optimizer(parameters)
        made.param_groups[0]["foreach"] = foreach
        return made

    def script(side, batches):
        for number, batch in enumerate(batches):
            yield side.eager(batch) if number in (0, 3, 4) else side.step(batch)

    both(script, make)


def test_two_trainers_on_one_optimizer():
    def another(model, batch):
        return model(batch[0]).abs().mean()

    def script(side, batches):
        first, loss = side.trainer, side.loss
        side.anew(loss=another)
        second = side.trainer
        for number, batch in enumerate(batches):
            side.trainer, side.loss = (second, another) if number % 3 else (first, loss)
            yield side.step(batch)
        side.loss = loss

    both(script)


def test_two_models_share_an_optimizer():
    def make():
        return nn.ModuleList([net(), nn.Linear(8, 4).double()])

    def script(side, batches):
        trainers = [
            shoal.Trainer(model, side.optimizer, squared_error) if side.trained else None
            for model in side.model
        ]
        models, whole = list(side.model), side.model
        for number, batch in enumerate(batches):
            side.model, side.trainer = models[number % 2], trainers[number % 2]
            yield side.step(batch)
        side.model = whole

    both(script, make=make, loss=squared_error)


def clear(optimizer, model):
    optimizer.state.clear()


def clear_one(optimizer, model):
    optimizer.state[model[0].weight] = {}


def empty_one(optimizer, model):
    optimizer.state[model[0].weight].clear()


def delete_one(optimizer, model):
    del optimizer.state[model[2].bias]


def another_dictionary(optimizer, model):
    optimizer.state = defaultdict(dict)


def ordered(optimizer, model):
    optimizer.state = OrderedDict(reversed(list(optimizer.state.items())))


def replace_tensor(optimizer, model):
    own = optimizer.state[model[0].weight]
    key = next(key for key in own if key != "step")
    own[key] = torch.full_like(own[key], 0.25)


def replace_data(optimizer, model):
    own = optimizer.state[model[0].weight]
    key = next(key for key in own if key != "step")
    own[key].data = torch.full_like(own[key], 0.25)


def transposed_memory(optimizer, model):
    own = optimizer.state[model[0].weight]
    key = next(key for key in own if key != "step")
    own[key] = torch.randn(*reversed(own[key].shape), generator=torch.Generator().manual_seed(1)).double().t()


def write_in_place(optimizer, model):
    for own in optimizer.state.values():
        for key, value in own.items():
            value.mul_(2) if key == "step" else value.mul_(0.5)


def exchange(optimizer, model):
    first, last = optimizer.state[model[0].weight], optimizer.state[model[2].weight]
    keep = {key: value.clone() for key, value in first.items()}
    for key in first:
        first[key] = torch.full_like(first[key], 0.125) if key != "step" else last[key] + 5
        last[key] = torch.full_like(last[key], 0.5) if key != "step" else keep[key] + 1


def reload(optimizer, model):
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize("optimizer", [adamw, sgd])
@pytest.mark.parametrize(
    "change",
    [
        clear,
        clear_one,
        empty_one,
        delete_one,
        another_dictionary,
        ordered,
        replace_tensor,
        replace_data,
        transposed_memory,
        write_in_place,
        exchange,
        reload,
    ],
)
def test_state_changed_between_steps(change, optimizer):
    def script(side, batches):
        for number, batch in enumerate(batches):
            if number in (2, 3, 6):
                change(side.optimizer, side.model)
            yield side.step(batch)

    both(script, optimizer)


def test_an_older_state_is_loaded_into_the_optimizer():
    def script(side, batches):
        saved = None
        for number, batch in enumerate(batches):
            if number == 2:
                saved = copy.deepcopy(side.optimizer.state_dict())
            if number == 5:
                side.optimizer.load_state_dict(saved)
            yield side.step(batch)

    both(script)


def test_a_state_with_something_missing_is_refused():
    model = net()
    trainer = shoal.Trainer(model, adamw(model.parameters()), squared_error)
    trainer.step(pair())
    own = trainer.optimizer.state[model[0].weight]
    moment = own.pop("exp_avg_sq")
    with pytest.raises(shoal.InvalidInput, match=r'optimizer.state of 0.weight has no "exp_avg_sq"'):
        trainer.step(pair())
    own["exp_avg_sq"] = moment[:2]
    with pytest.raises(shoal.InvalidInput, match=r"state 0.weight.exp_avg_sq has shape \[2, 8\]"):
        trainer.step(pair())
    own["exp_avg_sq"] = moment
    trainer.step(pair())
    trainer.optimizer.state = None
    with pytest.raises(shoal.InvalidInput, match=r"optimizer.state is a NoneType"):
        trainer.step(pair())


def freeze_first(side):
    side.optimizer.param_groups[0]["params"].remove(side.model[0].weight)


def swap_groups(side):
    side.optimizer.param_groups.reverse()


def split(side):
    parameter = side.model[2].weight
    for group in side.optimizer.param_groups:
        group["params"] = [each for each in group["params"] if each is not parameter]
    side.optimizer.add_param_group({"params": [parameter], "lr": 0.2})


def options(side):
    group = side.optimizer.param_groups[0]
    group["lr"] *= 3
    group["weight_decay"] = 0.3
    if "betas" in group:
        group["betas"] = [0.5, 0.7]
    else:
        group["momentum"], group["nesterov"] = 0.5, True


def betas_in_place(side):
    group = side.optimizer.param_groups[0]
    if isinstance(group.get("betas"), list):
        group["betas"][0] = 0.1


def tensor_lr(side):
    group = side.optimizer.param_groups[0]
    if torch.is_tensor(group["lr"]):
        group["lr"].mul_(0.5)
    else:
        group["lr"] = torch.tensor(0.3, dtype=torch.float64)
        group["foreach"] = False


def resized(side):
    old = side.model[0].weight
    side.model[0] = nn.Linear(8, 16).double()
    with torch.no_grad():
        for number, parameter in enumerate(side.model[0].parameters()):
            parameter.copy_(torch.linspace(-1, 1 + number, parameter.numel()).view_as(parameter))
    for group in side.optimizer.param_groups:
        group["params"] = [each if each is not old else side.model[0].weight for each in group["params"]]


@pytest.mark.parametrize("optimizer", [adamw, sgd])
@pytest.mark.parametrize("change", [freeze_first, swap_groups, split, options, tensor_lr, resized])
def test_groups_changed_between_steps(change, optimizer):
    def make(parameters):
        first, *rest = parameters
        made = optimizer([first, rest[0]])
        made.add_param_group({"params": rest[1:], "lr": 0.02})
        return made

    def script(side, batches):
        for number, batch in enumerate(batches):
            if number == 3 or (number == 5 and change is tensor_lr):
                change(side)
            if number == 6:
                betas_in_place(side)
            yield side.step(batch)

    both(script, make)


def test_momentum_is_set_and_taken_away():
    def script(side, batches):
        for number, batch in enumerate(batches):
            side.optimizer.param_groups[0]["momentum"] = [0.9, 0.9, 0, 0, 0.8, 0.8, 0, 0.9][number]
            yield side.step(batch)

    both(script, lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def test_a_parameter_of_the_loss_in_the_optimizer_is_trained():
    def script(side, batches):
        scale = nn.Parameter(torch.tensor([0.5, 2.0], dtype=torch.float64))
        side.optimizer.add_param_group({"params": [scale], "lr": 0.3})
        side.loss = lambda model, batch: squared_error(model, batch) * scale.square().sum()
        side.anew()
        for batch in batches:
            yield side.step(batch)
            yield scale.sum()

    both(script)


def test_a_parameter_of_nobody_is_added_to_the_optimizer():
    def script(side, batches):
        for number, batch in enumerate(batches):
            if number == 4:
                side.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
            yield side.step(batch)

    both(script)


def test_a_parameter_twice_in_the_optimizer_is_refused():
    model = net()
    optimizer = adamw(model.parameters())
    trainer = shoal.Trainer(model, optimizer, squared_error)
    trainer.step(pair())
    optimizer.param_groups[0]["params"].append(model[0].weight)
    with pytest.raises(
        shoal.InvalidInput, match=r"0.weight is in the optimizer twice.*param_groups\[0\]\[4\]"
    ):
        trainer.step(pair())


def test_post_hooks_run_after_each_update():
    def script(side, batches):
        seen = []
        own = side.optimizer.register_step_post_hook(
            lambda optimizer, args, kwargs: seen.append((optimizer is side.optimizer, args, kwargs))
        )
        everywhere = register_optimizer_step_post_hook(
            lambda optimizer, args, kwargs: seen.append(float(side.model[0].weight.detach().sum()))
        )
        try:
            for batch in batches[:3]:
                yield side.step(batch)
            own.remove()
            yield side.step(batches[3])
        finally:
            everywhere.remove()
        assert [each for each in seen if isinstance(each, tuple)] == [(True, (side.optimizer,), {})] * 3
        yield from (each for each in seen if isinstance(each, float))

    both(script)


def refused_step(change, match):
    model = net()
    trainer = shoal.Trainer(model, adamw(model.parameters()), squared_error)
    batch = pair()
    trainer.step(batch)
    undo = change(trainer.optimizer)
    before = copy.deepcopy(model.state_dict())
    try:
        with pytest.raises(shoal.InvalidInput, match=match + r".*Remedy: trainer.backward"):
            trainer.step(batch)
    finally:
        undo()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    trainer.step(batch)


def clip_gradients(optimizer, args, kwargs):
    pass


def test_a_pre_hook_is_refused_by_name():
    refused_step(lambda optimizer: optimizer.register_step_pre_hook(clip_gradients).remove, "clip_gradients")
    refused_step(lambda _: register_optimizer_step_pre_hook(clip_gradients).remove, "clip_gradients")


def test_a_step_that_is_not_pytorchs_is_refused_by_name():
    def my_step(closure=None):
        pass

    def instance(optimizer):
        optimizer.step = my_step
        return lambda: delattr(optimizer, "step")

    def of_class(optimizer):
        before = torch.optim.Adam.step
        torch.optim.AdamW.step = my_step
        return lambda: delattr(torch.optim.AdamW, "step") or setattr(torch.optim.Adam, "step", before)

    refused_step(instance, "optimizer.step is .*my_step")
    refused_step(of_class, "optimizer.step is .*my_step")


@pytest.mark.filterwarnings("error")
def test_schedulers_wrap_the_step_before_and_after_the_trainer_is_made():
    def script(side, batches):
        schedulers = [torch.optim.lr_scheduler.StepLR(side.optimizer, 2)]
        side.anew()
        yield side.step(batches[0])
        schedulers.append(torch.optim.lr_scheduler.ExponentialLR(side.optimizer, 0.9))
        for batch in batches:
            yield side.step(batch)
            for scheduler in schedulers:
                scheduler.step()

    both(script)


def test_parameters_that_share_memory_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.data = model[0].weight.data
    with pytest.raises(shoal.InvalidInput, match="0.weight and 1.weight share memory.*one parameter"):
        shoal.Trainer(model, adamw(model.parameters()))
    model[1].weight.data = model[0].weight.data.clone()
    trainer = shoal.Trainer(model, adamw(model.parameters()), lambda model, x: model(x).square().mean())
    trainer.step(torch.randn(2, 4))
    model[1].bias.data = model[0].weight.data[1]
    for _ in range(2):
        with pytest.raises(shoal.InvalidInput, match="0.weight and 1.bias share memory"):
            trainer.step(torch.randn(2, 4))
    whole = torch.randn(20)
    model[1].weight.data, model[1].bias.data = whole[:16].view(4, 4), whole[16:]
    trainer.step(torch.randn(2, 4))
