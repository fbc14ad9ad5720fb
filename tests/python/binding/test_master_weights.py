# SPDX-License-Identifier: Apache-2.0
"""Weights in bfloat16 without a float32 copy: optimizer.state, checkpoints, models of transformers."""

import families
import pytest
import torch
from torch import nn, optim

import shoal

MASTERS = ["none", "kahan"]


def make(master, optimizer=optim.AdamW, **options):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(50, 110), nn.Tanh(), nn.LayerNorm(110), nn.Linear(110, 4))
    model = model.to(torch.bfloat16)
    made = optimizer(model.parameters(), lr=0.01)
    parallelism = shoal.Parallelism(precision=f"bfloat16 master={master}")
    return model, made, shoal.Trainer(model, made, loss_of, parallelism=parallelism, **options)


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


def batch_of(step):
    torch.manual_seed(100 + step)
    return torch.randn(12, 50).to(torch.bfloat16), torch.randint(4, (12,))


@pytest.mark.parametrize("master", MASTERS)
def test_state_is_float32_and_weights_are_bfloat16(master):
    model, made, trainer = make(master, keeps_gradients=True)
    trainer.step(batch_of(0))
    for parameter in model.parameters():
        state = made.state[parameter]
        assert parameter.dtype == parameter.grad.dtype == torch.bfloat16
        assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
        assert ("compensation" in state) == (master == "kahan")
        if master == "kahan":
            assert state["compensation"].dtype == torch.bfloat16
            assert state["compensation"].abs().max() > 0


@pytest.mark.parametrize("master", MASTERS)
def test_a_checkpoint_of_the_trainer_goes_on_with_the_same_bits(master, tmp_path):
    model, _, trainer = make(master)
    for step in range(3):
        trainer.step(batch_of(step))
    trainer.save(tmp_path)
    trainer.wait_for_saves()
    again, _, other = make(master)
    other.load(tmp_path)
    for step in range(3, 6):
        assert trainer.step(batch_of(step)).loss == other.step(batch_of(step)).loss
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_models_of_transformers_learn_as_in_float32(master, family):
    losses = {}
    for kind in ("float32", master):
        torch.manual_seed(0)
        model, batch = getattr(families, family)()
        parallelism = None
        if kind != "float32":
            model = model.to(torch.bfloat16)
            parallelism = shoal.Parallelism(precision=f"bfloat16 master={master}")
        trainer = shoal.Trainer(
            model,
            optim.AdamW(model.parameters(), lr=1e-3),
            lambda model, batch: model(**batch).loss,
            parallelism=parallelism,
        )
        losses[kind] = [trainer.step(batch).loss for _ in range(20)]
    assert losses["float32"][-1] < 0.9 * losses["float32"][0]
    assert losses[master][-1] == pytest.approx(losses["float32"][-1], rel=0.02)


def test_muon_refuses_it():
    model = nn.Linear(8, 8, bias=False).to(torch.bfloat16)
    trainer = shoal.Trainer(
        model,
        optim.Muon(model.parameters(), lr=0.01),
        lambda model, x: model(x).sum(),
        parallelism=shoal.Parallelism(precision="bfloat16 master=kahan"),
    )
    with pytest.raises(shoal.Error, match="Muon looks at whole tensors, which precision.master=kahan"):
        trainer.step(torch.ones(2, 8, dtype=torch.bfloat16))
