# SPDX-License-Identifier: Apache-2.0
"""A model that reads what nobody can watch is recorded again now and then, and compared."""

import sys

import pytest
import torch
from torch import nn

import shoal


class Scaled(nn.Module):
    """By a number that is kept in the interpreter."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x) * sys.getswitchinterval()


@pytest.fixture(autouse=True)
def put_back():
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def trainer_of(**options):
    sys.setswitchinterval(1.0)
    model = Scaled().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, shoal.Trainer(model, optimizer, lambda model, x: model(x).square().mean(), **options)


def test_a_number_that_nobody_can_watch_is_noticed_before_the_update():
    model, trainer = trainer_of()
    x = torch.randn(3, 4).double()
    trainer.step(x)
    before = model.fc.weight.detach().clone()
    sys.setswitchinterval(0.5)
    with pytest.raises(
        shoal.InvalidInput, match=r"other=1\.0 then, other=0\.5 now.*test_spot_checks\.py:\d+"
    ):
        trainer.step(x)
    assert torch.equal(model.fc.weight, before)
    trainer.forget_graphs()
    wanted = model(x).square().mean().item()
    assert trainer.step(x).loss == pytest.approx(wanted)


def test_spot_checks_can_be_off():
    _, trainer = trainer_of(spot_checks=-1)
    x = torch.randn(3, 4).double()
    for beta in range(1, 9):
        sys.setswitchinterval(beta / 8)
        trainer.step(x)
