# SPDX-License-Identifier: Apache-2.0
"""The optimizers of torch.optim that Shoal makes the update of: parameters and state are PyTorch's."""

import pytest
import torch
from conftest import same
from test_parallel import run_ranks
from torch import nn, optim

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, maximised": lambda p: optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1, maximize=True),
    "SGD, dampened": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "Adam": lambda p: optim.Adam(p, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1),
    "AMSGrad": lambda p: optim.Adam(p, lr=0.01, betas=(0.8, 0.5), weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    "AdamW, maximised": lambda p: optim.AdamW(p, lr=0.01, betas=(0.8, 0.5), maximize=True, amsgrad=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1, weight_decay=0.1, initial_accumulator_value=0.2),
    "Adagrad, maximised": lambda p: optim.Adagrad(p, lr=0.01, maximize=True),
    "Adagrad, decayed": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.2, maximize=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01, weight_decay=0.1),
    "NAdam, decoupled": lambda p: optim.NAdam(
        p, lr=0.01, momentum_decay=0.1, weight_decay=0.1, decoupled_weight_decay=True, maximize=True
    ),
    "ASGD": lambda p: optim.ASGD(p, lr=0.1, weight_decay=0.1),
    "ASGD, averaged": lambda p: optim.ASGD(p, lr=0.1, lambd=0.1, alpha=0.5, t0=2, maximize=True),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.1, weight_decay=0.1),
    "Adafactor, maximised": lambda p: optim.Adafactor(
        p, lr=0.1, beta2_decay=-0.5, eps=(1e-4, 1e-2), d=1.5, maximize=True
    ),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, weight_decay=0.1),
    "RMSprop, centered": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True, maximize=True),
    "Adadelta": lambda p: optim.Adadelta(p, lr=1.0, rho=0.8, eps=1e-5, weight_decay=0.1),
    "Adadelta, maximised": lambda p: optim.Adadelta(p, maximize=True, foreach=True),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1),
    "Adamax, maximised": lambda p: optim.Adamax(p, maximize=True),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01, weight_decay=0.1),
    "RAdam, decoupled": lambda p: optim.RAdam(
        p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, maximize=True
    ),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "Rprop, bounded": lambda p: optim.Rprop(
        p, lr=0.01, etas=(0.4, 1.5), step_sizes=(8e-3, 0.02), maximize=True
    ),
}


def squared_error(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def pair():
    return torch.randn(6, 8).double(), torch.randn(6, 4).double()


def state_of(optimizer):
    """By parameter and name; what PyTorch keeps None or as a number is left out."""
    return {
        f"{number} {name}": torch.as_tensor(value).double()
        for number, own in optimizer.state_dict()["state"].items()
        for name, value in own.items()
        if value is not None
    }


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_updates_and_state_are_those_of_pytorch(compare, make):
    comparison = compare(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), squared_error, make)
    ours, theirs = comparison.trainer.optimizer, comparison.optimizer
    for update in range(8):  # RAdam rectifies from its sixth on
        wanted, got = comparison.step(pair())
        assert got == pytest.approx(wanted, rel=1e-9), f"loss of update {update}"
    same(
        dict(comparison.captured.named_parameters()),
        dict(comparison.plain.named_parameters()),
        1e-9,
        "parameter",
    )
    same(state_of(ours), state_of(theirs), 1e-9, "state")

    # PyTorch goes on from Shoal's state, and Shoal from PyTorch's.
    goes_on = make(comparison.captured.parameters())
    goes_on.load_state_dict(ours.state_dict())
    for model, optimizer in ((comparison.plain, theirs), (comparison.captured, goes_on)):
        torch.manual_seed(1)
        model.zero_grad()
        squared_error(model, comparison.moved(pair())).backward()
        optimizer.step()
    same(state_of(goes_on), state_of(theirs), 1e-9, "state")
    ours.load_state_dict(goes_on.state_dict())
    for _ in range(2):
        wanted, got = comparison.step(pair())
        assert got == pytest.approx(wanted, rel=1e-9)
    same(
        dict(comparison.captured.named_parameters()),
        dict(comparison.plain.named_parameters()),
        1e-9,
        "parameter",
    )
    same(state_of(ours), state_of(theirs), 1e-9, "state")


@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(8, 4), (4, 8)], ids=str)
def test_muon_is_that_of_pytorch(compare, adjust, shape):
    def make(parameters):
        return optim.Muon(parameters, lr=0.02, weight_decay=0.1, adjust_lr_fn=adjust, nesterov=shape[0] > 4)

    comparison = compare(nn.Linear(shape[1], shape[0], bias=False), squared_error, make)
    for _ in range(6):
        wanted, got = comparison.step((torch.randn(6, shape[1]).double(), torch.randn(6, shape[0]).double()))
        assert got == pytest.approx(wanted, rel=1e-9)  # the rounding of bfloat16 is the same
    comparison.check()


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match="2D"):
        optim.Muon(nn.Linear(2, 2).parameters())


@pytest.mark.parametrize("schedule", ["rate", "betas"])
def test_numbers_that_depend_on_earlier_options_are_kept(compare, schedule):
    """ASGD steps by the rate of the step before, and NAdam's product has all earlier momenta in it."""
    make = (lambda p: optim.ASGD(p, lr=0.1, lambd=0.1)) if schedule == "rate" else optim.NAdam
    comparison = compare(nn.Linear(8, 4), squared_error, make)
    for number in range(5):
        for optimizer in (comparison.optimizer, comparison.trainer.optimizer):
            if schedule == "rate":
                optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
            else:
                optimizer.param_groups[0]["betas"] = (0.9 - 0.1 * number, 0.99)
        wanted, got = comparison.step(pair())
        assert got == pytest.approx(wanted, rel=1e-9)
    same(state_of(comparison.trainer.optimizer), state_of(comparison.optimizer), 1e-9, "state")


def test_whole_tensors_and_numbers_on_ranks():
    done = run_ranks(2, "optimizers_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count(": equal") == 25, done.stdout
