# SPDX-License-Identifier: Apache-2.0
"""Models made under deferred_init have eager's bits, and no memory before they are made."""

import pathlib

import families
import pytest
import torch
from test_parallel import run_ranks

import shoal

HERE = pathlib.Path(__file__).parent


def tensors(model):
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def check_bits(make):
    torch.manual_seed(3)
    eager = make()
    after = torch.rand(3)
    torch.manual_seed(3)
    model = shoal.deferred_init(make)
    assert torch.equal(torch.rand(3), after)
    assert shoal.materialize(model) is model
    made = tensors(model)
    assert [name for name, _ in made] == [name for name, _ in tensors(eager)]
    for (name, tensor), (_, wanted) in zip(made, tensors(eager), strict=True):
        assert torch.equal(tensor, wanted), name
        assert tensor.stride() == wanted.stride() and tensor.requires_grad == wanted.requires_grad, name
    assert len({tensor.data_ptr() for _, tensor in made if tensor.numel()}) == len(
        {tensor.data_ptr() for _, tensor in tensors(eager) if tensor.numel()}
    )


class Block(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(channels)
        torch.nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")
        torch.nn.init.zeros_(self.norm.weight)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(300, 16, padding_idx=0)
        self.head = torch.nn.Linear(16, 300, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))
        torch.nn.init.orthogonal_(self.head.weight)
        torch.nn.init.trunc_normal_(self.words.weight, std=0.02)
        rates = [rate.item() for rate in torch.linspace(0, 1, 2000)]
        self.norm = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(90, int(40 * rates[-1])))


MODELS = {
    "resnet": lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 32, 7), *[Block(32) for _ in range(3)]),
    "transformer": lambda: torch.nn.Transformer(32, 4, 2, 2, 64),
    "lstm": lambda: torch.nn.LSTM(40, 50, num_layers=2, bidirectional=True),
    "tied": Tied,
    "half": lambda: torch.nn.Linear(90, 90).bfloat16(),
}


@pytest.mark.parametrize("name", MODELS)
def test_modules_have_eagers_bits(name):
    check_bits(MODELS[name])


@pytest.mark.parametrize(
    "family", families.JUDGED + families.UNPREPARED + families.OTHERS, ids=lambda family: family.__name__
)
def test_hugging_face_models_have_eagers_bits(family):
    check_bits(lambda: family()[0])


def test_a_trainer_makes_it():
    losses = []
    for make in (Net, lambda: shoal.deferred_init(Net)):
        torch.manual_seed(3)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        trainer = shoal.Trainer(model, optimizer, lambda model, x: model(x).square().mean(), seed=0)
        losses.append([trainer.step(torch.ones(4, 90)).loss for _ in range(3)])
    assert losses[0] == losses[1]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(90, 90)
        self.second = torch.nn.Linear(90, 40)
        self.factor = torch.full((2000,), 0.5)  # neither a parameter nor a buffer

    def forward(self, x):
        return self.second(self.first(x).tanh()) * self.factor[0]


def test_what_has_no_values_says_so():
    model = shoal.deferred_init(Net)
    for use in (
        lambda: model(torch.ones(1, 90)),
        lambda: model.first.weight.detach().numpy(),
        lambda: model.first.weight + 1,
    ):
        with pytest.raises(RuntimeError, match="made under deferred_init.*materialize"):
            use()
    with pytest.raises(shoal.InvalidInput, match="a int cannot be called"):
        shoal.deferred_init(3)
    with pytest.raises(shoal.InvalidInput, match="neither a torch.nn.Module nor a tensor"):
        shoal.materialize(3)


SCRIPT = """
import shoal, torch
from test_deferred import Net

def loss(model, x):
    return model(x).square().mean()

losses = []
for make in (Net, lambda: shoal.deferred_init(Net)):
    torch.manual_seed(3)
    model = make()
    parallelism = shoal.Parallelism(DEGREES)
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = shoal.Trainer(model, optimizer, loss, parallelism=parallelism, seed=0)
    rows = shoal.samples_of(4, parallelism)
    losses.append([trainer.step(torch.ones(4, 90)[rows]).loss for _ in range(3)])
assert losses[0] == losses[1], losses
"""


@pytest.mark.parametrize("degrees", ["shard=2, zero_stage=3", "pipeline=2"])
def test_two_ranks_train_it_as_an_eager_one(tmp_path, degrees):
    script = tmp_path / "script.py"
    text = SCRIPT.replace("import shoal", f"import sys; sys.path.insert(0, {str(HERE)!r}); import shoal", 1)
    script.write_text(text.replace("DEGREES", degrees))
    done = run_ranks(2, str(script))
    assert done.returncode == 0, done.stderr[-3000:]
