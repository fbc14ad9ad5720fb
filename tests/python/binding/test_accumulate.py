# SPDX-License-Identifier: Apache-2.0
"""One update by several micro-batches: that of the whole batch, in the memory of one."""

import copy
import subprocess
import sys

import pytest
import torch
from built import BUILD
from conftest import same
from torch import nn

import shoal


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], ignore_index=0)


def batch_of(seed, size=10):
    torch.manual_seed(seed)
    return {"x": torch.randn(size, 6).double(), "y": torch.randint(5, (size,)), "scale": 1.0}


def trainer_of(model, **options):
    return shoal.Trainer(model, torch.optim.Adam(model.parameters(), lr=0.01), loss_of, **options)


@pytest.mark.parametrize("count", [2, 3, 99])
def test_parts_are_the_whole(count):
    plain = net()
    whole = trainer_of(plain, clip_norm=0.1)
    parts = trainer_of(copy.deepcopy(plain), clip_norm=0.1, accumulate=count)
    for step in range(4):
        wanted, got = whole.step(batch_of(step)), parts.step(batch_of(step))
        assert got.loss == pytest.approx(wanted.loss, rel=1e-12)  # a mean over targets that count
        assert got.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-9)
    same(parts.model.state_dict(), plain.state_dict(), 1e-9, "parameter")
    same(parts.gradients(), whole.gradients(), 1e-9, "gradient")


def test_a_list_of_micro_batches_may_have_any_sizes():
    plain = net()
    whole = trainer_of(plain)
    parts = trainer_of(copy.deepcopy(plain))
    batch = batch_of(3)
    cut = [{**batch, "x": batch["x"][rows], "y": batch["y"][rows]} for rows in (slice(0, 7), slice(7, 10))]
    assert parts.step_over(cut).loss == pytest.approx(whole.step(batch).loss, rel=1e-12)
    same(parts.model.state_dict(), plain.state_dict(), 1e-9, "parameter")
    scheduler = torch.optim.lr_scheduler.StepLR(parts.optimizer, 1)
    scheduler.step()  # does not warn: the optimizer has stepped


def test_what_forward_leaves_behind_is_there_for_the_next_micro_batch():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6).double()
            self.h = torch.zeros(6).double()

        def forward(self, x):
            y = self.fc(x) + self.h
            self.h = y.detach().mean(0)
            return y.square().mean()

    torch.manual_seed(1)
    plain = Remembers()
    model = copy.deepcopy(plain)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2)
    for step in range(3):
        x = batch_of(step)["x"]
        theirs.zero_grad()
        losses = [plain(part) for part in x.split(5)]
        (sum(losses) / 2).backward()
        theirs.step()
        assert trainer.step((x,)).loss == pytest.approx(sum(losses).item() / 2, rel=1e-12)
    assert torch.allclose(model.h, plain.h, rtol=1e-12)


def test_what_cannot_be_cut_is_named():
    trainer = trainer_of(net(), accumulate=2)
    batch = batch_of(0)
    with pytest.raises(shoal.InvalidInput, match=r"item y has 9 there, item x 10.*step_over"):
        trainer.step({**batch, "y": batch["y"][:9]})
    with pytest.raises(shoal.InvalidInput, match="there is no tensor with a dim"):
        trainer.step({"x": torch.tensor(1.0)})
    with pytest.raises(shoal.InvalidInput, match="leave outputs=True out"):
        trainer.step(batch, outputs=True)
    with pytest.raises(shoal.InvalidInput, match="over no micro-batch"):
        trainer.step_over([])
    with pytest.raises(shoal.InvalidInput, match="accumulate is 0"):
        trainer_of(net(), accumulate=0)


MEMORY = """
import re, sys
import torch, shoal
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [layer for _ in range(12) for layer in (nn.Tanh(), nn.Linear(512, 512))]
model = nn.Sequential(nn.Linear(64, 512), *layers)
options = {"accumulate": 8} if sys.argv[1] == "8" else {}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
trainer = shoal.Trainer(model, optimizer, lambda m, x: m(x).square().mean(), **options)
x = torch.randn(int(sys.argv[2]), 64)
trainer.step(x[:8])
def peak():  # KiB; getrusage's begins with that of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
for _ in range(2): trainer.step(x)
print((peak() - before) / 1024)
"""


def test_eight_parts_take_the_memory_of_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(MEMORY)

    def grown(count, size):
        command = [sys.executable, str(script), str(count), str(size)]
        done = subprocess.run(
            command, env={"PYTHONPATH": str(BUILD / "python")}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    whole, parts, one = grown(1, 4096), grown(8, 4096), grown(1, 512)
    assert parts < 1.5 * one + 16, f"MiB: whole {whole}, in 8 parts {parts}, one part {one}"
    assert whole > 3 * parts, f"MiB: whole {whole}, in 8 parts {parts}, one part {one}"
