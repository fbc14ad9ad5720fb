# SPDX-License-Identifier: Apache-2.0
"""One rank of test_checkpoints.py: saves three steps, or goes on with three more, under ZeRO-3; and the
same on one device."""

import pathlib
import sys

import torch
from test_checkpoints import batch_of, loss_of, make

import shoal

mode, folder = sys.argv[1], pathlib.Path(sys.argv[2])


def train(parallelism, numbers, load=False):
    model, optimizer, schedule = make()
    trainer = shoal.Trainer(model, optimizer, loss_of, seed=5, parallelism=parallelism)
    if load:
        schedule.load_state_dict(trainer.load(folder)["schedule"])
    for number in numbers:
        batch = batch_of(number)
        if parallelism is not None:
            rows = shoal.samples_of(7, parallelism)
            batch = {name: tensor[rows] for name, tensor in batch.items()}
        trainer.step(batch)
        schedule.step()
    if mode == "save" and parallelism is not None:
        trainer.save(folder, {"schedule": schedule.state_dict()})
        trainer.wait_for_saves()
    state = trainer.state_dict()
    moments = [own["exp_avg"] for own in state["optimizer"]["state"].values()]
    return [*state["model"].values(), *moments], [group["lr"] for group in optimizer.param_groups]


sharded = shoal.Parallelism(shard=-1)
here = train(sharded, range(3)) if mode == "save" else train(sharded, range(3, 6), load=True)
alone = train(None, range(3 if mode == "save" else 6))
assert here[1] == alone[1]
for mine, other in zip(here[0], alone[0], strict=True):
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)
print(f"{mode}: equal", flush=True)
