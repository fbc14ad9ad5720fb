# SPDX-License-Identifier: Apache-2.0
"""What a model draws: anew at every step, the same again for the same seed, and as eager PyTorch would with
the same draws."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from shoal._shoal import _EagerRandom
from torch.utils.checkpoint import checkpoint

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


LIBRARY = torch.library.Library("shoal_test", "DEF")
LIBRARY.define(
    "draws(Tensor x, *, Generator? generator=None) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)
LIBRARY.impl(
    "draws", lambda x, generator=None: torch.rand(x.shape, generator=generator, dtype=x.dtype), "CPU"
)
LIBRARY.define("draws_unseen(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
LIBRARY.impl("draws_unseen", lambda x: torch.rand_like(x), "CPU")

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
    "an operator of one's own": lambda y: torch.ops.shoal_test.draws(W),
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


@pytest.mark.parametrize(
    ("draw", "mean", "variance"),
    [
        (lambda n: torch.empty(n).log_normal_(0.1, 0.5), math.exp(0.225), math.expm1(0.25) * math.exp(0.45)),
        (lambda n: torch.empty(n).geometric_(0.3), 1 / 0.3, 0.7 / 0.09),
        (lambda n: torch.empty(n, dtype=torch.long).geometric_(0.3), 1 / 0.3, 0.7 / 0.09),
        (lambda n: torch.empty(n).cauchy_(0.5, 2.0).sub(0.5).div(2).atan(), 0, math.pi**2 / 12),
        (lambda n: torch.normal(torch.full((n,), 2.0), 3.0), 2, 9),
        (lambda n: torch.normal(2.0, torch.full((n,), 3.0)), 2, 9),
        (lambda n: torch.poisson(torch.full((n,), 4.0)), 4, 4),
        (lambda n: torch.binomial(torch.full((n,), 10.0), torch.full((n,), 0.3)), 3, 2.1),
        (lambda n: torch.multinomial(torch.tensor([1.0, 2, 1]), n, replacement=True), 1, 0.5),
        (lambda n: torch.distributions.Gamma(2.0, 0.5).sample((n,)), 4, 8),
        (lambda n: torch.distributions.Beta(2.0, 3.0).sample((n,)), 0.4, 0.04),
        (lambda n: torch.randperm(n) / n, 0.5, 1 / 12),
        (lambda n: -F.rrelu(torch.full((n,), -1.0), 0.1, 0.9, training=True), 0.5, 0.64 / 12),
    ],
)
def test_draws_have_the_mean_and_the_variance_of_their_distribution(draw, mean, variance):
    n = 40_000
    with _EagerRandom(SEED, 1):
        drawn = draw(n).double()
    assert drawn.mean().item() == pytest.approx(mean, abs=5 * math.sqrt(variance / n))
    assert drawn.var().item() == pytest.approx(variance, rel=0.1)


def test_geometric_numbers_are_whole_and_above_zero():
    with _EagerRandom(SEED, 1):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
            drawn = torch.empty(10_000, dtype=dtype).geometric_(0.9)
            assert drawn.dtype == dtype
            assert drawn.min().item() == 1
            assert torch.equal(drawn, drawn.double().round().to(dtype))


def mixup(model, x):
    """Draws on constants alone: which rows are mixed, and how much of each."""
    weight = torch.distributions.Beta(0.4, 0.4).sample().double()
    partner = torch.randperm(len(x))
    target = x.square()
    output = model(weight * x + (1 - weight) * x[partner])
    both = weight * (output - target).square() + (1 - weight) * (output - target[partner]).square()
    return both.mean()


def test_mixup_is_what_eager_does_under_the_same_draws():
    losses = check_equal(make_noisy(torch.tanh), mixup, steps=5)
    assert len(set(losses)) == 5


def test_rrelu_is_what_eager_does_under_the_same_draws():
    def make(inplace):
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(6, 6), torch.nn.RReLU(0.1, 0.9, inplace=inplace), torch.nn.Linear(6, 1)
        ).double()

    assert check_equal(make(False)) == check_equal(make(True))


def test_rrelu_in_evaluation_is_a_leaky_relu():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.RReLU(0.1, 0.9)).double()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), mean_square)
    x = torch.randn(8, 6).double()
    wanted = mean_square(model.eval(), x).item()
    model.train()
    assert trainer.evaluate(x).loss == pytest.approx(wanted, rel=1e-12)
    assert trainer.evaluate(x).loss == trainer.evaluate(x).loss


def test_two_equal_draws_stay_two():
    def difference(a, b):
        return (a.double() - b.double()).square().sum()

    pairs = {
        "permutations": lambda y: difference(torch.randperm(6), torch.randperm(6)),
        "gammas": lambda y: difference(torch._standard_gamma(W), torch._standard_gamma(W)),
        "rrelus": lambda y: difference(F.rrelu(-y.exp(), training=True), F.rrelu(-y.exp(), training=True)),
        "in place": lambda y: difference(y.clone().normal_(), y.clone().normal_()),
    }
    for name, pair in pairs.items():
        model = make_noisy(pair)
        trainer = shoal.Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.0),
            lambda model, x: model(x) + model.fc.bias.sum(),
        )
        least = trainer.step(torch.ones(2, 6).double()).loss - model.fc.bias.sum().item()
        assert least > 1e-6, name


class Forgetful(torch.nn.Dropout):
    """Monte Carlo dropout: there is no other mode."""

    def train(self, mode=True):
        return super().train(True)


def test_each_evaluation_draws_anew_beside_the_draws_of_training():
    x = torch.randn(8, 6).double()

    def run(evaluations):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 6), Forgetful(0.5)).double()
        trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), mean_square, seed=SEED)
        evaluated, trained = [], []
        for _ in range(3):
            evaluated += [trainer.evaluate(x).loss for _ in range(evaluations)]
            trained.append(trainer.step(x).loss)
        return evaluated, trained

    evaluated, trained = run(4)
    assert len(set(evaluated + trained)) == 15
    assert run(4) == (evaluated, trained)
    assert run(0) == ([], trained)
    assert run(1)[0] == evaluated[::4]


def test_a_state_that_is_loaded_evaluates_as_it_did_when_it_was_saved():
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), Forgetful(0.5)).double()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), mean_square)
    x = torch.randn(8, 6).double()
    trainer.step(x)
    saved = copy.deepcopy(trainer.state_dict())
    losses = [trainer.evaluate(x).loss for _ in range(3)]
    trainer.load_state_dict(saved)
    assert [trainer.evaluate(x).loss for _ in range(3)] == losses


def test_a_part_that_is_computed_again_draws_the_same_again():
    def part(y):
        return y[torch.randperm(8)] * torch._standard_gamma(W) * F.rrelu(y, 0.1, 0.9, training=True)

    plain = make_noisy(part)
    again = make_noisy(lambda y: checkpoint(part, y, use_reentrant=False))
    assert check_equal(again) == pytest.approx(check_equal(plain), rel=1e-12)


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda y: torch.randperm(6, generator=torch.Generator()), "aten::randperm.generator a generator of"),
        (lambda y: torch.rand(6, generator=torch.Generator()), "a generator of its own"),
        (lambda y: y * torch.poisson(W, torch.Generator()), "aten::poisson a generator of its own"),
        (lambda y: torch.randperm(6, out=torch.empty(0, dtype=torch.long)), "into a tensor of another shape"),
        (
            lambda y: torch.randint(0, 300, (6,), dtype=torch.uint8),
            "numbers from 0 to 300, more than Byte holds",
        ),
        (lambda y: torch.empty(6).geometric_(1.0), "a probability of 1"),
        (lambda y: torch.empty(6).cauchy_(0, 0), "a scale of 0"),
        (lambda y: torch.ops.shoal_test.draws_unseen(y), "that no generator can be given to"),
        (lambda y: torch.randperm(6)[0].item(), "reads a value that depends on"),
        (lambda y: y if torch.rand([]) < 0.5 else -y, "reads a value that depends on"),
        (lambda y: y if torch.rand([]) < 1.0 else -y, "reads a value that depends on"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_line_it_is_on(draw, words):
    trainer = still_trainer(draw)
    with pytest.raises(shoal.InvalidInput, match=words) as error:
        trainer.step(torch.ones(8, 6).double())
    assert "test_random.py" in str(error.value)


@pytest.mark.parametrize(
    ("is_so", "wanted"),
    [
        (lambda: torch.rand([]) < 0.0, False),
        (lambda: torch.rand([]) < 1.5, True),
        (lambda: torch.rand([]) <= -1, False),
        (lambda: torch.rand([]) <= 1, True),
        (lambda: torch.rand([]) > 1, False),
        (lambda: torch.rand([]) > -0.5, True),
        (lambda: torch.rand([]) >= 2, False),
        (lambda: torch.rand([]) >= 0, True),
        (lambda: torch.empty([]).uniform_(2, 3) < 2, False),
    ],
)
def test_what_no_draw_could_change_may_be_asked_as_where_no_layer_is_ever_dropped(is_so, wanted):
    assert bool(is_so()) == wanted
    check_equal(make_noisy(lambda y: y * torch.rand(6) if bool(is_so()) == wanted else y))


def test_the_default_generator_may_be_named():
    check_equal(make_noisy(lambda y: y * torch.rand(6, generator=torch.default_generator)))


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_drop_out_between_layers_as_eager_does_under_the_same_draws(layer):
    torch.manual_seed(0)
    model = Noisy(torch.nn.Identity())
    model.fc = layer(6, 5, num_layers=3, dropout=0.3)
    losses = check_equal(model.double(), lambda model, x: model.fc(x)[0].square().mean())
    assert len(set(losses)) == 3


def test_what_draws_nothing_stays_a_constant():
    x = torch.ones(8, 6).double()
    for draw in (
        lambda y: F.dropout(W, 0.5, training=False),
        lambda y: F.rrelu(-W, training=False),
        lambda y: F.scaled_dot_product_attention(y[None], y[None], y[None])[0],
    ):
        trainer = still_trainer(draw)
        assert "seed" not in str(trainer.graph(x))
        assert trainer.step(x).loss == trainer.step(x).loss
