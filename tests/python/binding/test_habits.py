# SPDX-License-Identifier: Apache-2.0
"""What models do that touches the kind of a tensor, its type, or the capture itself: they train as by
PyTorch, or are refused by name."""

import copy

import pytest
import torch
import transformers
from torch import nn

import shoal


class Net(nn.Module):
    def __init__(self, tail):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.tail = tail

    def forward(self, x):
        return self.tail(self.fc(x))


def mean_square(model, x):
    return model(x).square().mean()


def of_type(kind):
    return lambda y: y * 2 if isinstance(y, kind) else y * 3


WORK = {
    "new_tensor of a list": lambda y: y * y.new_tensor([1.0, 2, 3, 4]),
    "new_tensor of a number": lambda y: y * y.new_tensor(3),
    "new_tensor of a tensor": lambda y: y * y.new_tensor(torch.arange(4), dtype=torch.float64),
    "new_tensor of an activation": lambda y: y * y.new_tensor(y.detach()),
    "new with sizes": lambda y: torch.cat([y, y.new(3, 2).fill_(2)], 1),
    "new with a size": lambda y: y + y.new(y.size()).zero_() + 1,
    "new with values": lambda y: y * y.new([1.0, 2, 3, 4]),
    "FloatTensor": of_type(torch.FloatTensor),
    "LongTensor": of_type(torch.LongTensor),
    "DoubleTensor": of_type(torch.DoubleTensor),
    "complex numbers": lambda y: (1j * y).abs() + torch.exp(1j * y).real,
}


@pytest.mark.parametrize("tail", WORK.values(), ids=WORK.keys())
@pytest.mark.filterwarnings("ignore:To copy construct")
def test_it_trains_as_by_pytorch(tail):
    torch.manual_seed(0)
    plain, x = Net(tail), torch.randn(3, 4)
    model = copy.deepcopy(plain)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), mean_square)
    for _ in range(3):
        theirs.zero_grad()
        loss = mean_square(plain, x)
        loss.backward()
        theirs.step()
        assert trainer.step(x).loss == pytest.approx(loss.item(), rel=1e-5)
    assert not isinstance(x, torch.LongTensor) and isinstance(x, torch.FloatTensor)
    assert torch.equal(x.new_tensor([1.0]), torch.ones(1))


def caught_item(y):
    try:
        return y * 2 if y.sum().item() > 0 else y * 3
    except Exception:
        return y * 5


def caught_mask(y):
    try:
        return y[y > 0]
    except Exception:
        return y


@pytest.mark.parametrize("tail", [caught_item, caught_mask])
def test_a_refusal_that_the_model_catches_is_one(tail):
    model = Net(tail)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), mean_square)
    with pytest.raises(
        shoal.InvalidInput, match=r"module fc at .*test_habits.py:\d+ \(caught_.*Remedy: keep it"
    ):
        trainer.step(torch.randn(3, 4))


def test_evaluation_under_inference_mode():
    model = Net(torch.tanh)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), mean_square)
    x = torch.randn(3, 4)
    for _ in range(2):
        wanted = mean_square(model, x).item()
        with torch.inference_mode():
            assert trainer.evaluate(x).loss == pytest.approx(wanted, rel=1e-6)
            made_here = torch.randn(3, 4)
        trainer.step(x)
    assert trainer.step(made_here).loss > 0


def test_inference_mode_inside_of_a_model_is_named():
    class Twice(Net):
        def forward(self, x):
            with torch.inference_mode():
                self.fc(x).mean()
            return self.fc(x)

    model = Twice(None)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), mean_square)
    with pytest.raises(shoal.InvalidInput, match=r"test_habits.py:\d+.*Remedy: .*use torch.no_grad"):
        trainer.step(torch.randn(3, 4))


def test_eight_bit_floats_are_named():
    float8 = torch.float8_e4m3fn
    model = Net(lambda y: y.to(float8).float())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        shoal.InvalidInput, match=r"module fc at .*test_habits.py.*Float8_e4m3fn.* convert it"
    ):
        shoal.Trainer(model, optimizer, mean_square).step(torch.randn(3, 4))
    model.tail = torch.tanh
    with pytest.raises(shoal.InvalidInput, match=r"item x of the batch is Float8_e4m3fn.*Remedy: .*bfloat16"):
        shoal.Trainer(model, optimizer, mean_square).step({"x": torch.randn(3, 4).to(float8)})
    model.register_buffer("table", torch.randn(4).to(float8))
    with pytest.raises(shoal.InvalidInput, match="buffer table is Float8_e4m3fn"):
        shoal.Trainer(model, optimizer, mean_square)


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
}
MIXTURES = {
    "Mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SIZES, num_local_experts=4)
    ),
    "Qwen3-MoE": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SIZES, num_experts=4, moe_intermediate_size=16, num_experts_per_tok=2)
    ),
}


@pytest.mark.parametrize("make", MIXTURES.values(), ids=MIXTURES.keys())
def test_mixtures_of_experts_at_their_defaults_in_float32(make):
    torch.manual_seed(0)
    plain = make()
    model = copy.deepcopy(plain)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        torch.manual_seed(step)  # other rows go to other experts
        ids = torch.randint(3, 64, (2, 12))
        theirs.zero_grad()
        loss = plain(input_ids=ids, labels=ids).loss
        loss.backward()
        theirs.step()
        assert trainer.step({"input_ids": ids, "labels": ids}).loss == pytest.approx(loss.item(), rel=1e-5)
