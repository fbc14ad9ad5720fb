# SPDX-License-Identifier: Apache-2.0
"""What a model draws: anew at every step, the same again for the same seed, and as eager PyTorch would with
the same draws."""

import copy

import pytest
import torch
import torch.nn.functional as F
from shoal._shoal import _EagerRandom

import shoal

SEED = 3


class Noisy(torch.nn.Module):
    """A linear layer whose output `draw` changes."""

    def __init__(self, draw):
        super().__init__()
        self.fc = torch.nn.Linear(6, 6)
        self.draw = draw

    def forward(self, x):
        return self.draw(self.fc(x))


def mean_square(model, x):
    return model(x).square().mean()


def make_noisy(draw):
    torch.manual_seed(0)
    return Noisy(draw).double()


def check_equal(model, loss=mean_square, steps=3):
    """Trained by Shoal and by PyTorch under the same draws: losses and parameters are the same."""
    eager = copy.deepcopy(model)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.05), loss, seed=SEED)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.05)
    losses = []
    for step in range(1, steps + 1):
        torch.manual_seed(step)
        x = torch.randn(8, 6).double()
        got = trainer.step(x).loss
        optimizer.zero_grad()
        with _EagerRandom(SEED, step):
            wanted = loss(eager, x)
            wanted.backward()
        optimizer.step()
        assert got == pytest.approx(wanted.item(), rel=1e-12), f"loss of step {step}"
        losses.append(got)
    for (name, ours), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12, msg=lambda text: f"{name}: {text}")
    return losses


def test_an_eager_step_under_the_same_draws_is_the_captured_one():
    check_equal(make_noisy(lambda y: F.dropout(y, 0.3) * torch.rand(6, dtype=torch.double)))
