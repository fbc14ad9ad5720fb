# SPDX-License-Identifier: Apache-2.0
"""One rank of test_dcp.py: folders of PyTorch's distributed checkpoints, out of a Trainer and into one."""

import copy
import pathlib
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import shoal


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_of(model, x):
    return model(x).square().mean()


def batch_of(number):
    return torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def save(folder, model, optimizer):
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder, no_dist=True)


def load(folder, model, optimizer):
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder, no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def eager(model, optimizer, numbers):
    for number in numbers:
        optimizer.zero_grad()
        loss_of(model, batch_of(number)).backward()
        optimizer.step()


def check(folder, parallelism):
    """Three steps by PyTorch, three by Shoal, three by PyTorch: from folder to folder."""
    rank = shoal.rank() if parallelism else 0
    own = folder / str(rank)  # each writes what it has gathered
    plain, plain_optimizer = make()
    eager(plain, plain_optimizer, range(3))
    save(own / "first", plain, plain_optimizer)
    wanted, wanted_optimizer = make()
    eager(wanted, wanted_optimizer, range(9))

    for has_trained in (False, True):
        model, optimizer = make()
        trainer = shoal.Trainer(model, optimizer, loss_of, parallelism=parallelism)

        def step(number, trainer=trainer):
            batch = batch_of(number)
            trainer.step(batch[shoal.samples_of(len(batch), parallelism)] if parallelism else batch)

        if has_trained:
            step(100)
        trainer.materialize()
        load(own / "first", model, optimizer)
        for number in range(3, 6):
            step(number)
        trainer.materialize()
        save(own / f"second{has_trained}", model, optimizer)

        last, last_optimizer = make()
        load(own / f"second{has_trained}", last, last_optimizer)
        eager(last, last_optimizer, range(6, 9))
        for now, then in zip(last.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(now, then, rtol=1e-10, atol=1e-12)
        states = copy.deepcopy(last_optimizer.state_dict()), wanted_optimizer.state_dict()
        for now, then in zip(*(state["state"].values() for state in states), strict=True):
            assert now["step"] == then["step"] == 9
            torch.testing.assert_close(now["exp_avg"], then["exp_avg"], rtol=1e-9, atol=1e-12)
    print("from folder to folder", flush=True)


if __name__ == "__main__":
    settings = {"": {}, "zero1": {"shard": -1, "zero_stage": 1}, "zero3": {"shard": -1}}[sys.argv[2]]
    check(pathlib.Path(sys.argv[1]), shoal.Parallelism(**settings))
