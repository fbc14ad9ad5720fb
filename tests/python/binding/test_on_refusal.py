# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be captured: PyTorch runs them, and the update is Shoal's."""

import copy

import pytest
import torch
from conftest import same
from test_parallel import run_ranks
from torch import nn

import shoal


class Experts(nn.Module):
    """A mixture of experts as it is mostly written: which rows an expert takes depends on parameters."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 4) for _ in range(3))
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        chosen = weights.argmax(-1)
        y = x.new_zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            y = y.index_add(0, rows, expert(x[rows]) * weights[rows, number : number + 1])
        return y


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def pair(seed=0, size=8):
    torch.manual_seed(seed)
    return torch.randn(size, 6).double(), torch.randn(size, 4).double()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def experts():
    torch.manual_seed(1)
    return Experts().double()


def test_a_refused_model_trains_as_by_pytorch():
    plain = experts()
    model = copy.deepcopy(plain)
    theirs = adamw(plain)
    trainer = shoal.Trainer(model, adamw(model), loss_of, clip_norm=0.1, on_refusal="eager")
    for step in range(4):
        theirs.zero_grad()
        wanted = loss_of(plain, pair(step))
        wanted.backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        theirs.step()
        if step == 0:
            with pytest.warns(
                UserWarning, match=r"PyTorch's own from now on.* What was refused: capture: .*aten::nonzero"
            ):
                result = trainer.step(pair(step))
        else:
            result = trainer.step(pair(step))
        assert result.loss == pytest.approx(wanted.item(), rel=1e-12)
        assert result.grad_norm == pytest.approx(norm.item(), rel=1e-9)
        assert result.step == step + 1
    same(model.state_dict(), plain.state_dict(), 1e-9, "parameter")
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.warns(UserWarning, match="What was refused"):
        evaluation = trainer.evaluate(pair(9), outputs=True)
    assert evaluation.loss == pytest.approx(loss_of(plain, pair(9)).item(), rel=1e-12)

    trainer.backward(pair(5))
    trainer.backward(pair(6))
    plain.zero_grad()
    (loss_of(plain, pair(5)) + loss_of(plain, pair(6))).backward()
    same(
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None},
        {name: p.grad for name, p in plain.named_parameters() if p.grad is not None},
        1e-12,
        "gradient",
    )


def test_micro_batches_of_a_refused_model_are_the_batch():
    plain = experts()
    model = copy.deepcopy(plain)
    whole = shoal.Trainer(plain, adamw(plain), loss_of, on_refusal="eager")
    parts = shoal.Trainer(model, adamw(model), loss_of, on_refusal="eager", accumulate=3)
    for step in range(3):
        with pytest.warns(UserWarning) if step == 0 else _nothing():
            assert parts.step(pair(step)).loss == pytest.approx(whole.step(pair(step)).loss, rel=1e-12)
    same(model.state_dict(), plain.state_dict(), 1e-9, "parameter")


class _nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def test_errors_that_are_no_refusals_stay_errors():
    model = nn.Linear(6, 4).double()
    trainer = shoal.Trainer(model, adamw(model), loss_of, on_refusal="eager")
    with pytest.raises(shoal.InvalidInput, match="is -?nan"):
        trainer.step((pair()[0] * float("inf"), pair()[1] * 0 + float("inf")))
    assert trainer.graph(pair()) is not None
    with pytest.raises(shoal.InvalidInput, match='give "error" or "eager"'):
        shoal.Trainer(model, adamw(model), loss_of, on_refusal="ignore")
    with pytest.raises(shoal.InvalidInput, match="aten::nonzero"):
        trainer = shoal.Trainer(model := experts(), adamw(model), loss_of)
        trainer.step(pair())


def test_what_keeps_parameters_in_parts_says_that_it_cannot():
    model = experts()
    for parallelism, told in (
        (shoal.Parallelism(shard=2), "ZeRO-3"),
        (shoal.Parallelism(tensor=2), "tensor parallel"),
    ):
        with pytest.raises(shoal.InvalidInput, match=f"with {told} no rank has all"):
            shoal.Trainer(model, adamw(model), loss_of, on_refusal="eager", parallelism=parallelism)


def test_on_ranks():
    done = run_ranks(2, "refused_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count(": equal") == 3, done.stdout
    assert "gradients are reduced after backward" in done.stderr
