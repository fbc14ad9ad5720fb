# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes by looking into a tensor is recorded without, is read from the batch and guarded, is
checked in the step, or is refused by name."""

import copy

import pytest
import torch
from torch import distributions as D
from torch import nn
from torch.nn import functional as F

import shoal


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(3)).double()


def fill(h):
    positive = h.masked_fill(h > 0, -1.0).sum()
    return positive + h.masked_fill(h < 0, h.mean()).sum() + (h * 1).masked_fill_(h < 0, h.mean()).sum()


def put(h):
    changed = h * 1.0
    changed[changed > 0.5] = 0.5
    changed[changed.sum(1) > 0] = h[0].detach()
    return changed.square().sum() + h.index_put((h < 0,), h.max()).square().sum()


def products(h):
    one_zero = torch.cat([h[0], h[0, :1] * 0])
    return h.prod() + h.relu().prod(1).sum() + one_zero.prod() + torch.cat([one_zero, h[0, :1] * 0]).prod()


FORMULAS = {
    "the largest of all": lambda h: h.max(),
    "the smallest of all": lambda h: h.min(),
    "the median of all": lambda h: h.median() + h.nanmedian(),
    "ties share a gradient": lambda h: h.relu().min() + h.relu().sum(),
    "products, with zeros among the factors": products,
    "cumulative products, with zeros": lambda h: (h.cumprod(1) + h.relu().cumprod(0)).sum(),
    "norms": lambda h: sum(torch.linalg.vector_norm(h, p) for p in (0.5, 1, 1.5, 2, 3, float("inf"), -1)),
    "distances": lambda h: sum(torch.dist(h, X[:, :4], p) for p in (0.5, 1, 2, 3)),
    "masks of values fill": fill,
    "masks of values put": put,
    "combinations": lambda h: torch.combinations(h[:, 0], 2).prod(1).sum(),
    "signs": lambda h: (h.sgn() * h).sum(),
    "complex numbers": lambda h: torch.view_as_real((torch.complex(h, h * 2) * 1j).conj().sgn()).sum(),
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_backward_pass_reads_no_values(compare, formula):
    compare(nn.Linear(8, 4), lambda model, x: FORMULAS[formula](model(x)), sgd).run(X, updates=2)


DISTRIBUTIONS = {
    "Normal": lambda h: -D.Normal(h, h.exp()).log_prob(torch.ones(6, 4).double()).mean(),
    "Categorical": lambda h: -D.Categorical(probs=h.softmax(-1)).log_prob(torch.arange(6) % 4).mean(),
    "Beta": lambda h: -D.Beta(h.exp(), 1 + h.exp()).log_prob(torch.full((6, 4), 0.3).double()).mean(),
    "MultivariateNormal": lambda h: (
        -D.MultivariateNormal(h, torch.eye(4).double() * 2).log_prob(torch.zeros(4).double()).mean()
    ),
    "kl_divergence": lambda h: D.kl_divergence(D.Normal(h, h.exp()), D.Normal(0.0, 1.0)).mean(),
    "gaussian_nll_loss": lambda h: F.gaussian_nll_loss(h, torch.zeros(6, 4).double(), h.exp()),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_checks_of_arguments_need_no_values(compare, name):
    compare(nn.Linear(8, 4), lambda model, x: DISTRIBUTIONS[name](model(x)), sgd).run(X, updates=2)


def one_weight(loss):
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(1.0)
    return model, shoal.Trainer(model, sgd(model.parameters()), loss)


@pytest.mark.parametrize("loss", [
    lambda model, x: D.Normal(0.0, model(x), validate_args=True).log_prob(torch.ones(1, 1).double()).sum(),
    lambda model, x: F.gaussian_nll_loss(model(x), torch.zeros(1, 1).double(), model(x)),
])  # fmt: skip
def test_a_check_that_fails_in_a_later_step_ends_that_step(loss):
    model, trainer = one_weight(loss)
    trainer.step(torch.ones(1, 1).double())
    before = model.weight.detach().clone()
    with pytest.raises(shoal.InvalidInput, match=r"a check of values fails.*test_no_reads\.py:\d+"):
        trainer.step(-torch.ones(1, 1).double())
    assert torch.equal(model.weight, before)


def test_anomalies_are_found_when_they_happen():
    torch.autograd.set_detect_anomaly(True)
    try:
        _, trainer = one_weight(lambda model, x: (model(x) + 0 * model(x).sqrt()).sum())
        trainer.step(torch.ones(1, 1).double())
        with pytest.raises(shoal.InvalidInput, match="a gradient is not a number"):
            trainer.step(torch.zeros(1, 1).double())
    finally:
        torch.autograd.set_detect_anomaly(False)


class Encoder(nn.Module):
    def __init__(self, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8))

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)


def squares(model, batch):
    return model(*batch).square().mean()


@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}])
@pytest.mark.parametrize("aligned", [True, False])
def test_an_encoder_with_a_padding_mask_is_evaluated(compare, options, aligned):
    padding = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]).bool()
    batch = (torch.randn(3, 5, 8).double(), padding if aligned else padding.flip(1))
    compare(Encoder(**options), squares, sgd).run(batch, updates=2)


def test_batch_norm_without_a_momentum_averages_all_batches(compare):
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4, momentum=None))
    twins = compare(model, lambda model, x: model(x).square().mean(), sgd)
    for scale in range(1, 5):
        twins.step(X * scale)
    twins.check()
    assert model[1].num_batches_tracked == 4


class Packed(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.read = read

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, self.read(lengths), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("read", [lambda n: n.tolist(), lambda n: list(n.numpy()), lambda n: n.cpu()])
def test_lengths_of_a_batch_are_read_and_guarded(compare, read):
    twins = compare(Packed(read), squares, sgd)
    for lengths in ([5, 3, 2], [4, 4, 1], [5, 3, 2]):
        wanted, got = twins.step((torch.randn(3, 5, 8).double(), torch.tensor(lengths)))
        assert got == pytest.approx(wanted, rel=1e-12)
    assert not {"numpy", "tolist"} & set(torch.Tensor.__dict__)


@pytest.mark.parametrize("select", [
    lambda h: h.masked_select(h > 0).sum(),
    lambda h: h.sum() * h.nonzero().sum(),
    lambda h: h[h > 0].sum(),
    lambda h: h.sum() * h.tolist()[0][0],
])  # fmt: skip
def test_what_parameters_decide_is_refused_with_line_and_remedy(select):
    model = nn.Linear(8, 4).double()
    trainer = shoal.Trainer(model, sgd(model.parameters()), lambda model, x: select(model(x)))
    with pytest.raises(shoal.InvalidInput, match=r"test_no_reads\.py:\d+ .*Remedy: "):
        trainer.step(X)


class Holder(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.real = nn.Linear(3, 3).double()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        x = self.real(x)
        return (x.to(self.weight.dtype) @ self.weight).abs().sum()


def test_a_complex_parameter_is_refused_before_anything_is_written():
    model = Holder(torch.randn(3, 3, dtype=torch.complex128))
    trainer = shoal.Trainer(model, sgd(model.parameters()), lambda model, x: model(x))
    before = model.real.weight.detach().clone()
    with pytest.raises(shoal.InvalidInput, match="parameter weight is c128.*view_as_complex"):
        trainer.step(torch.randn(2, 3).double())
    assert torch.equal(model.real.weight, before)


def test_a_sparse_parameter_is_refused_by_name():
    model = Holder(torch.eye(3).double().to_sparse_csr())
    with pytest.raises(shoal.InvalidInput, match="parameter weight is sparse"):
        shoal.Trainer(model, sgd(model.parameters()), lambda model, x: model(x))


class Renormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4, max_norm=0.5)

    def forward(self, ids):
        return self.words(ids)


class Clamped(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)

    def forward(self, ids):
        with torch.no_grad():
            self.words.weight.clamp_(-0.1, 0.1)
        return self.words(ids)


class Following(Clamped):
    """As BYOL's target: the model's own parameter, which no gradient reaches."""

    def __init__(self):
        super().__init__()
        self.target = nn.Embedding(10, 4).requires_grad_(False)

    def forward(self, ids):
        with torch.no_grad():
            self.target.weight.data.mul_(0.9).add_(self.words.weight, alpha=0.1)
        return self.words(ids).flip(0) - self.target(ids)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam], ids=["sgd", "adam"])
@pytest.mark.parametrize("make", [Renormed, Clamped, Following], ids=lambda make: make.__name__)
def test_parameters_that_forward_writes_to_are_as_pytorch_has_them(make, kind):
    torch.manual_seed(1)
    plain = make().double()
    model = copy.deepcopy(plain)
    ours, theirs = (kind(each.parameters(), lr=0.1) for each in (model, plain))
    trainer = shoal.Trainer(model, ours, lambda model, ids: (model(ids) - 1).square().mean())
    for step in range(4):
        ids = torch.tensor([1, 2, 2 + step])
        theirs.zero_grad()
        loss = (plain(ids) - 1).square().mean()
        loss.backward()
        theirs.step()
        assert trainer.step(ids).loss == pytest.approx(loss.item(), rel=1e-12)
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(model.get_parameter(name), parameter, rtol=1e-12, atol=1e-14)
