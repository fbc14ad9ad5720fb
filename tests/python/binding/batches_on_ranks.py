# SPDX-License-Identifier: Apache-2.0
"""One rank of test_parallel.py's job: samples that lie in the second dim, and ranks that pad otherwise."""

import torch
from conftest import same
from torch import nn

import shoal

LENGTH, SAMPLES = 6, 5


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 8)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.drop(self.rnn(x)[0]).mean(0))


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def batch_of(step):
    torch.manual_seed(step)
    return {"x": torch.randn(LENGTH, SAMPLES, 4).double(), "y": torch.randint(3, (SAMPLES,))}


def trainer_of(parallelism):
    torch.manual_seed(1)
    model = TimeFirst().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return shoal.Trainer(model, optimizer, loss_of, seed=3, parallelism=parallelism)


def message(act):
    try:
        act()
    except shoal.InvalidInput as error:
        return str(error)
    raise AssertionError("nothing was thrown")


def check_equal(cut):
    alone, parallelism = trainer_of(None), shoal.Parallelism(shard=2, batch_dims={"x": 1})
    together = trainer_of(parallelism)
    for step in range(4):
        batch = batch_of(step)
        rows = cut(parallelism)
        part = {"x": batch["x"][:, rows], "y": batch["y"][rows]}
        wanted, got = alone.step(batch).loss, together.step(part).loss
        assert abs(wanted - got) < 1e-9, (step, wanted, got)
    same(together.state_dict()["model"], alone.state_dict()["model"], 1e-9, "parameter")


check_equal(lambda parallelism: shoal.samples_of(SAMPLES, parallelism))
check_equal(lambda _: slice(0, 1) if shoal.rank() == 0 else slice(1, SAMPLES))  # put together and cut again
trainer = trainer_of(shoal.Parallelism(batch_dims={"x": 1}))
length = LENGTH - shoal.rank()
part = {"x": torch.randn(length, 2, 4).double(), "y": torch.zeros(2, dtype=torch.long)}
told = message(lambda: trainer.step(part))
assert "item x: f64[6, 0, 4]', rank 1 has 'batch item x: f64[5, 0, 4]'. Remedy: pad alike" in told, told
for dims, wanted in (
    ({"z": 1}, "batch_dims has z, and the tensors of the batch are x, y"),
    ({"y": 1}, "shape [2]"),
):
    told = message(lambda dims=dims: trainer_of(shoal.Parallelism(batch_dims=dims)).step(part))
    assert wanted in told, told
print("all is well")
