# SPDX-License-Identifier: Apache-2.0
"""One rank of test_optimizers.py's job: optimizers that look at whole tensors, or keep numbers beside
them, on all ranks and on one device."""

import torch
from conftest import same
from torch import nn, optim

import shoal

PLAN = "parameter 0.weight tensor=S(0)\nparameter 0.bias tensor=S(0)\nparameter 3.weight tensor=S(1)\n"
STRATEGIES = {
    "data parallel": shoal.Parallelism(),
    "ZeRO-1": shoal.Parallelism(shard=2, zero_stage=1),
    "ZeRO-2": shoal.Parallelism(shard=2, zero_stage=2),
    "ZeRO-3": shoal.Parallelism(shard=2),
    "tensor parallel": shoal.Parallelism(tensor=2, plan=PLAN),
}


OPTIMIZERS = {
    "Adafactor": lambda m: optim.Adafactor(m.parameters(), lr=0.1, weight_decay=0.1),
    "ASGD": lambda m: optim.ASGD(m.parameters(), lr=0.1, lambd=0.1, t0=1),
    "Muon": lambda m: optim.Muon([p for p in m.parameters() if p.dim() == 2], lr=0.1),
    "NAdam": lambda m: optim.NAdam(m.parameters(), lr=0.1),
    "SGD": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
}


def make():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 4)).double()


def train(make_optimizer, parallelism):
    model = make()
    optimizer = make_optimizer(model)
    trainer = shoal.Trainer(
        model, optimizer, lambda model, x: model(x).square().mean(), clip_norm=0.1, parallelism=parallelism
    )
    for step in range(4):
        torch.manual_seed(step)
        x = torch.randn(7, 6).double()
        rows = slice(None) if parallelism is None else shoal.samples_of(7, parallelism)
        loss = trainer.step(x[rows]).loss
        if step == 1:
            trainer.load_state_dict(trainer.state_dict())
    values = {"loss": torch.tensor(loss).double()}
    for number, own in optimizer.state_dict()["state"].items():
        values |= {f"{number}.{name}": torch.as_tensor(value) for name, value in own.items()}
    return values | trainer.state_dict()["model"]


for name, make_optimizer in OPTIMIZERS.items():
    wanted = train(make_optimizer, None)
    for strategy, parallelism in STRATEGIES.items():
        # What Muon rounds to bfloat16 differs where the last bit of a sum does.
        same(
            train(make_optimizer, parallelism),
            wanted,
            1e-3 if name == "Muon" else 1e-9,
            f"{name}, {strategy}:",
        )
        if shoal.rank() == 0:
            print(f"{name}, {strategy}: equal")
