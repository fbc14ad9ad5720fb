# SPDX-License-Identifier: Apache-2.0
"""Optimizer state in bfloat16 and in 8 bits: what is in optimizer.state, and that a run goes on from it."""

import copy

import numpy
import pytest
import torch
from torch import nn, optim

import shoal

STATES = ["bfloat16", "uint8"]
OPTIMIZERS = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.001, momentum=0.9, centered=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
}


def trainer_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def make(optimizer="AdamW", state_dtype="float32", dtype=torch.float32):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(50, 110), nn.Tanh(), nn.Linear(110, 4)).to(dtype)
    made = OPTIMIZERS[optimizer](model.parameters())
    return model, made, shoal.Trainer(model, made, trainer_loss, state_dtype=state_dtype)


def batch_of(step, dtype=torch.float32):
    torch.manual_seed(100 + step)
    return torch.randn(12, 50).to(dtype), torch.randint(4, (12,))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bfloat16_state_is_in_the_optimizer(optimizer):
    model, made, trainer = make(optimizer, "bfloat16")
    trainer.step(batch_of(0))
    for parameter in model.parameters():
        for key, value in made.state[parameter].items():
            wanted = torch.float32 if value.dim() == 0 else torch.bfloat16
            assert value.dtype == wanted, key


@pytest.mark.parametrize("state_dtype", STATES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_goes_on_from_its_state_dict_with_the_same_bits(optimizer, state_dtype):
    model, made, trainer = make(optimizer, state_dtype)
    for step in range(3):
        trainer.step(batch_of(step))
    again, its, other = make(optimizer, state_dtype)
    again.load_state_dict(model.state_dict())
    its.load_state_dict(copy.deepcopy(made.state_dict()))
    for step in range(3, 6):
        assert trainer.step(batch_of(step)).loss == other.step(batch_of(step)).loss
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("state_dtype", STATES)
def test_a_checkpoint_of_the_trainer_goes_on_with_the_same_bits(state_dtype, tmp_path):
    model, _, trainer = make("AdamW", state_dtype)
    for step in range(3):
        trainer.step(batch_of(step))
    trainer.save(tmp_path)
    trainer.wait_for_saves()
    again, _, other = make("AdamW", state_dtype)
    other.load(tmp_path)
    for step in range(3, 6):
        assert trainer.step(batch_of(step)).loss == other.step(batch_of(step)).loss
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    _, _, plain = make("AdamW")
    with pytest.raises(shoal.Error, match=r"exp_avg: is (bf16|u8).*wanted f32(.|\n)*Remedy: .* state_dtype"):
        plain.load(tmp_path)


@pytest.mark.parametrize("optimizer", ["Adafactor", "Muon"])
def test_optimizers_of_whole_tensors_refuse_it(optimizer):
    model = nn.Linear(8, 8, bias=False)
    made = getattr(optim, optimizer)(model.parameters(), lr=0.01)
    with pytest.raises(shoal.Error, match=f"{optimizer} looks at whole tensors.*leave state_dtype"):
        shoal.Trainer(model, made, lambda model, x: model(x).sum(), state_dtype="bfloat16")
    with pytest.raises(shoal.Error, match='state_dtype is "float16"; give'):
        shoal.Trainer(model, made, lambda model, x: model(x).sum(), state_dtype="float16")


def tree(signed):
    """Dynamic tree quantisation of 8 bits (arXiv:2110.02861, 2.1): what the codes stand for."""
    values = [0.0, 1.0]
    for power in range(7):
        count = 2 ** (power if signed else power + 1)
        edges = numpy.linspace(0.1, 1, count + 1)
        means = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (power - 6)
        values += list(means) + (list(-means) if signed else [])
    return numpy.sort(numpy.array(values)).astype(numpy.float32)


def quantised(values, signed):
    """Codes and the largest absolute value of every 256 (section 2.2)."""
    flat = values.numpy().reshape(-1)
    blocks = [flat[begin : begin + 256] for begin in range(0, flat.size, 256)]
    maxima = numpy.array([abs(block).max() for block in blocks])
    shares = tree(signed)
    codes = []
    for block, largest in zip(blocks, maxima, strict=True):
        share = block / largest
        code = numpy.searchsorted((shares[:-1] + shares[1:]) / numpy.float32(2), share)
        codes.append(code if signed else numpy.where(share > 0, numpy.maximum(code, 1), code))
    return numpy.concatenate(codes), maxima


def test_codes_are_those_of_the_paper():
    model, made, _ = make("AdamW")
    trainer = shoal.Trainer(model, made, trainer_loss, state_dtype="uint8", keeps_gradients=True)
    trainer.step(batch_of(0))
    weight, state = model[0].weight, made.state[model[0].weight]
    of_state = {
        "exp_avg": (weight.grad * numpy.float32(1 - 0.9), True),
        "exp_avg_sq": (weight.grad * weight.grad * numpy.float32(1 - 0.999), False),
    }
    for key, (values, signed) in of_state.items():
        codes, maxima = quantised(values, signed)
        assert state[key].dtype == torch.uint8
        assert numpy.array_equal(state[key].numpy().reshape(-1), codes), key
        assert numpy.array_equal(state[f"{key}_absmax"].numpy(), maxima), key
    assert made.state[model[2].weight]["exp_avg"].dtype == torch.float32  # fewer than 4,096 elements


def test_state_of_another_dtype_is_refused_by_key():
    model, made, trainer = make("AdamW")
    trainer.step(batch_of(0))
    with pytest.raises(shoal.Error, match=r'state of 0.weight has no "exp_avg_absmax".*state_dtype'):
        shoal.Trainer(model, made, trainer_loss, state_dtype="uint8").step(batch_of(1))
    model, made, trainer = make("AdamW", "uint8")
    trainer.step(batch_of(0))
    with pytest.raises(shoal.Error, match=r'state of 0.weight has "exp_avg_absmax".*state_dtype'):
        shoal.Trainer(model, made, trainer_loss).step(batch_of(1))
