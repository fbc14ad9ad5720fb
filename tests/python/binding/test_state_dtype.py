# SPDX-License-Identifier: Apache-2.0
"""Optimizer state in bfloat16 and in 8 bits: what is in optimizer.state, and that a run goes on from it."""

import copy


import pytest
import torch
from torch import nn, optim

import shoal

STATES = ["bfloat16"]
OPTIMIZERS = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.001, momentum=0.9, centered=True),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
}


def make(optimizer="AdamW", state_dtype="float32", dtype=torch.float32):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(50, 110), nn.Tanh(), nn.Linear(110, 4)).to(dtype)
    made = OPTIMIZERS[optimizer](model.parameters())
    loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    return model, made, shoal.Trainer(model, made, loss, state_dtype=state_dtype)


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
    again, _, other = make("AdamW", state_dtype)
    other.load(tmp_path)
    for step in range(3, 6):
        assert trainer.step(batch_of(step)).loss == other.step(batch_of(step)).loss
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    _, _, plain = make("AdamW")
    with pytest.raises(shoal.Error, match=r"exp_avg: is (bf16|u8).*wanted f32(.|\n)*Remedy: the optimizer's state_dtype"):
        plain.load(tmp_path)


@pytest.mark.parametrize("optimizer", ["Adafactor", "Muon"])
def test_optimizers_of_whole_tensors_refuse_it(optimizer):
    model = nn.Linear(8, 8, bias=False)
    made = getattr(optim, optimizer)(model.parameters(), lr=0.01)
    with pytest.raises(shoal.Error, match=f"{optimizer} looks at whole tensors.*leave state_dtype at float32"):
        shoal.Trainer(model, made, lambda model, x: model(x).sum(), state_dtype="bfloat16")
    with pytest.raises(shoal.Error, match='state_dtype is "float16"; give'):
        shoal.Trainer(model, made, lambda model, x: model(x).sum(), state_dtype="float16")
