# SPDX-License-Identifier: Apache-2.0
"""One rank of test_backward.py's job: gradients of all ranks, an optimizer that Shoal does not have, and the
same on one device."""

import copy

import torch
from conftest import same
from torch import nn
from torch.nn.utils import clip_grad_norm_

import shoal

PLAN = "parameter 0.weight tensor=S(0)\nparameter 0.bias tensor=S(0)\nparameter 3.weight tensor=S(1)\n"
STRATEGIES = {
    "data parallel": shoal.Parallelism(),
    "ZeRO-1": shoal.Parallelism(shard=2, zero_stage=1),
    "ZeRO-2": shoal.Parallelism(shard=2, zero_stage=2),
    "ZeRO-3": shoal.Parallelism(shard=2),
    "tensor parallel": shoal.Parallelism(tensor=2, plan=PLAN),
}


def make():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 4)).double()


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], ignore_index=0)


def batch_of(number):
    torch.manual_seed(100 + number)
    return {"x": torch.randn(7, 6).double(), "y": torch.randint(4, (7,))}


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def train(model, parallelism, check):
    trainer = shoal.Trainer(model, loss_fn=loss_of, seed=3, parallelism=parallelism)
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        for microbatch in range(2):  # they add up
            batch = batch_of(2 * step + microbatch)
            if parallelism is not None:
                rows = shoal.samples_of(7, parallelism)
                batch = {name: tensor[rows] for name, tensor in batch.items()}
            loss = trainer.backward(batch).loss
        norm = clip_grad_norm_(model.parameters(), 0.5)
        check({"loss": torch.tensor(loss).double(), "norm": norm, **gradients(model)})
        optimizer.step()
    trainer.evaluate(batch)  # takes parts of what the optimizer has changed
    trainer.materialize()
    check(dict(model.named_parameters()))


def main():
    wanted = []
    train(make(), None, lambda values: wanted.append(copy.deepcopy(values)))
    for name, parallelism in STRATEGIES.items():
        each = iter(wanted)
        train(make(), parallelism, lambda values, each=each: same(values, next(each), 1e-9, "value"))
        assert next(each, None) is None
        if shoal.rank() == 0:
            print(f"{name}: equal", flush=True)


main()
