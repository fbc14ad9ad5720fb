# SPDX-License-Identifier: Apache-2.0
"""One rank of test_on_refusal.py's job: a model that cannot be captured, on all ranks and on one device.
Parts are uneven, and experts that no row of a rank has chosen have no gradient there."""

import torch
from conftest import same
from test_on_refusal import adamw, experts, loss_of, pair

import shoal

STRATEGIES = {
    "data parallel": shoal.Parallelism(),
    "ZeRO-1": shoal.Parallelism(shard=2, zero_stage=1),
    "ZeRO-2": shoal.Parallelism(shard=2, zero_stage=2),
}


def train(parallelism):
    model = experts()
    trainer = shoal.Trainer(
        model, adamw(model), loss_of, clip_norm=0.1, on_refusal="eager", parallelism=parallelism
    )
    values = {}
    for step in range(4):
        batch = pair(step, size=5)
        if parallelism is not None:
            batch = tuple(tensor[shoal.samples_of(5, parallelism)] for tensor in batch)
        result = trainer.step(batch)
        values |= {f"loss {step}": torch.tensor(result.loss), f"norm {step}": torch.tensor(result.grad_norm)}
    values["evaluated"] = torch.tensor(trainer.evaluate(batch).loss)
    trainer.backward(batch)
    values |= {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: value.double() for name, value in values.items()} | trainer.state_dict()["model"]


wanted = train(None)
for name, parallelism in STRATEGIES.items():
    same(train(parallelism), wanted, 1e-6, f"{name}:")
    if shoal.rank() == 0:
        print(f"{name}: equal")
