# SPDX-License-Identifier: Apache-2.0
import copy
import os
import sys

import pytest
import torch
from built import BUILD

sys.path.insert(0, str(BUILD / "python"))
# Where `compare` trains: SHOAL_TEST_DEVICE=cuda holds a GPU against plain PyTorch on it.
DEVICE = os.environ.get("SHOAL_TEST_DEVICE", "cpu")
os.environ.setdefault(
    "HF_HUB_OFFLINE", "1"
)  # nothing is downloaded: models are made from their configurations


def adamw(parameters):
    """With an eps above the noise of gradients that are zero but for rounding: divided by their own size, the
    noise of another processor's kernels would be an update of its own."""
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-5)


def moved(batch):
    if DEVICE == "cpu":
        return batch
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(DEVICE), batch)


class Comparison:
    """Two copies of a model, one trained by PyTorch and one by Shoal, held against each other.

    A tensor is right if it is within `rtol` of its own largest value plus `rtol` of the largest value among
    all tensors of its kind: a gradient that is zero but for rounding would fail any relative bound.
    """

    device, moved = DEVICE, staticmethod(moved)

    def __init__(self, model, loss_of=None, optimizer=adamw, **options):
        import shoal

        self.plain = model.double().to(DEVICE).train()
        self.captured = copy.deepcopy(self.plain)
        self.loss_of = loss_of or (lambda model, batch: model(**batch).loss)
        self.optimizer = optimizer(self.plain.parameters())
        options.setdefault("seed", 0)  # none is drawn: what a test draws itself stays as it was
        self.trainer = shoal.Trainer(self.captured, optimizer(self.captured.parameters()), loss_of, **options)

    def step(self, batch):
        batch = moved(batch)
        self.plain.zero_grad()
        loss = self.loss_of(self.plain, batch)
        loss.backward()
        self.optimizer.step()
        return loss.item(), self.trainer.step(batch).loss

    def run(self, batch, updates=5, rtol=1e-9):
        for update in range(updates):
            wanted, got = self.step(batch)
            assert abs(wanted - got) <= rtol * max(1, abs(wanted)), (
                f"loss of update {update}: {got}, not {wanted}"
            )
        self.check(rtol)
        self.plain.eval()
        batch = moved(batch)
        with torch.no_grad():
            wanted = self.loss_of(self.plain, batch).item()
        got = self.trainer.evaluate(batch).loss
        assert abs(wanted - got) <= rtol * max(1, abs(wanted)), f"loss in evaluation: {got}, not {wanted}"

    def check(self, rtol=1e-9):
        gradients = {
            name: parameter.grad
            for name, parameter in self.plain.named_parameters()
            if parameter.grad is not None
        }
        same(self.trainer.gradients(), gradients, rtol, "gradient")
        same(dict(self.captured.named_parameters()), dict(self.plain.named_parameters()), rtol, "parameter")
        same(dict(self.captured.named_buffers()), dict(self.plain.named_buffers()), rtol, "buffer")
        for kind in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
            same(moments(self.trainer.optimizer, kind), moments(self.optimizer, kind), rtol, kind)


def moments(optimizer, kind):
    state = optimizer.state_dict()["state"]
    return {str(number): own[kind] for number, own in state.items() if own.get(kind) is not None}


def same(got, wanted, rtol, kind):
    assert got.keys() == wanted.keys(), f"{kind}s: {sorted(got.keys() ^ wanted.keys())} are on one side only"
    numbers = [tensor.detach().abs().max().item() for tensor in wanted.values() if tensor.numel()]
    largest = max(numbers, default=0)
    for name, tensor in wanted.items():
        if not tensor.numel():
            continue
        bound = rtol * (tensor.detach().abs().max().item() + largest)
        worst = (got[name].detach().double() - tensor.detach().double()).abs().max().item()
        assert worst <= bound, f"{kind} {name} is off by {worst}, more than {bound}"


@pytest.fixture
def compare():
    torch.manual_seed(0)
    return Comparison
