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
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12, msg=name)
    return losses


def test_an_eager_step_under_the_same_draws_is_the_captured_one():
    check_equal(make_noisy(lambda y: F.dropout(y, 0.3) * torch.rand(6, dtype=torch.double)))


# Each draws (8, 6) or what broadcasts to it, from constants alone unless it says y.
W = torch.linspace(0.5, 3, 6, dtype=torch.double)
DRAWS = {
    "randperm": lambda y: torch.randperm(6),
    "randperm of rows": lambda y: y[torch.randperm(8)],
    "randperm, out": lambda y: torch.randperm(6, out=torch.empty(6, dtype=torch.long)),
    "multinomial": lambda y: torch.multinomial(W, 6, replacement=True),
    "multinomial of an activation": lambda y: torch.multinomial(y.softmax(1), 6),
    "poisson": lambda y: torch.poisson(W),
    "poisson of an activation": lambda y: torch.poisson(y.exp()),
    "binomial": lambda y: torch.binomial(torch.full((6,), 9.0).double(), W / 4),
    "log_normal_": lambda y: torch.empty(6).double().log_normal_(0.1, 0.5),
    "geometric_": lambda y: torch.empty(6).double().geometric_(0.3),
    "geometric_ on integers": lambda y: torch.empty(6, dtype=torch.long).geometric_(0.3),
    "cauchy_": lambda y: torch.empty(6).double().cauchy_(0.5, 2.0).atan(),
    "exponential_": lambda y: torch.empty(6).double().exponential_(2.0),
    "uniform_ on an activation": lambda y: y.clone().uniform_(-1, 1),
    "normal_ on a view": lambda y: torch.cat([y.clone()[:, :3].normal_(), y[:, 3:]], 1),
    "random_": lambda y: torch.empty(6).double().random_(0, 9),
    "randint_like": lambda y: torch.randint_like(W, 2, 9),
    "randint_like with a tensor": lambda y: torch.randint_like(W, torch.tensor(9)),
    "rand_like": lambda y: torch.rand_like(y),
    "complex randn": lambda y: torch.randn(6, dtype=torch.complex128).abs(),
    "normal, tensor mean": lambda y: torch.normal(y, 0.3),
    "normal, tensor deviation": lambda y: torch.normal(1.0, W),
    "normal, both tensors": lambda y: torch.normal(y, W),
    "normal, out": lambda y: torch.normal(W, 0.5, out=torch.empty(6).double()),
    "rand, out": lambda y: torch.rand(6, out=torch.empty(6).double()),
    "bernoulli of an activation": lambda y: torch.bernoulli(y.sigmoid()),
    "bernoulli_ with a tensor": lambda y: torch.zeros(8, 6).double().bernoulli_(W / 4),
    "standard gamma": lambda y: torch._standard_gamma(W),
    "standard gamma of an activation": lambda y: torch._standard_gamma(y.exp()),
    "Beta": lambda y: torch.distributions.Beta(W, W + 1).sample(),
    "Beta with one parameter, mixup's": lambda y: torch.distributions.Beta(0.4, 0.4).sample(),
    "Beta, reparametrised": lambda y: torch.distributions.Beta(
        y.exp() + 0.5, W.expand(8, 6), validate_args=False
    ).rsample(),
    "Gamma, reparametrised": lambda y: torch.distributions.Gamma(
        y.exp() + 0.5, W.expand(8, 6), validate_args=False
    ).rsample(),
    "Dirichlet": lambda y: torch.distributions.Dirichlet(W).sample(),
    "Dirichlet, reparametrised": lambda y: torch.distributions.Dirichlet(
        y.exp() + 0.5, validate_args=False
    ).rsample(),
    "Normal, reparametrised": lambda y: torch.distributions.Normal(y, W, validate_args=False).rsample(),
    "Categorical": lambda y: torch.distributions.Categorical(W / W.sum()).sample((6,)),
    "Gumbel softmax": lambda y: F.gumbel_softmax(y, 0.5),
    "RReLU": lambda y: F.rrelu(y, 0.1, 0.9, training=True),
    "RReLU in place": lambda y: F.rrelu(y * 1, 0.1, 0.9, training=True, inplace=True),
    "dropout": lambda y: F.dropout(y, 0.4),
    "dropout in place": lambda y: F.dropout(y * 1, 0.4, inplace=True),
    "alpha dropout": lambda y: F.alpha_dropout(y, 0.4, training=True),
    "feature alpha dropout": lambda y: F.feature_alpha_dropout(y[..., None], 0.4, training=True)[..., 0],
    "dropout2d": lambda y: F.dropout2d(y.view(2, 4, 6, 1), 0.4).view(8, 6),
    "native_dropout": lambda y: torch.native_dropout(y, 0.4, True)[0],
    "attention with dropout": lambda y: F.scaled_dot_product_attention(
        y[None, None], y[None, None], y[None, None], dropout_p=0.4
    )[0, 0],
    "fractional max pool": lambda y: F.fractional_max_pool2d(
        y.repeat(4, 4)[None], 2, output_size=(13, 9)
    ).sum(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_draws_anew_at_every_step_as_eager_under_the_same_draws(name):
    draw = DRAWS[name]
    check_equal(make_noisy(lambda y: y * draw(y)))
    trainer = still_trainer(draw)
    torch.manual_seed(9)
    x = torch.randn(8, 6).double()
    losses = [trainer.step(x).loss for _ in range(4)]
    assert len(set(losses)) > 2, losses  # some have few values
    again = still_trainer(draw)
    assert [again.step(x).loss for _ in range(4)] == losses


def still_trainer(draw, seed=SEED):
    """Its parameters stay as they are, so that only draws make one step another than the next."""
    model = make_noisy(lambda y: y * draw(y))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return shoal.Trainer(model, optimizer, mean_square, seed=seed)
