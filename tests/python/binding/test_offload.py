# SPDX-License-Identifier: Apache-2.0
"""Offload from Python: `Parallelism(offload=…)`, of one rank and of several."""

import copy
import pathlib

import offload_on_ranks
import pytest
import torch
from built import BUILD
from test_parallel import run_ranks

import shoal


def test_no_bit_changes_on_one_rank():
    offload_on_ranks.main(BUILD)


def test_no_bit_changes_on_two_ranks():
    done = run_ranks(2, "offload_on_ranks.py", BUILD)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("all bits are equal") == 2


def trainer(model=None, **settings):
    model = model or torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    return shoal.Trainer(
        model, optimizer, lambda net, x: net(x).square().mean(), parallelism=shoal.Parallelism(**settings)
    )


def test_a_model_keeps_its_values_and_is_read_and_saved_as_ever(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    made = trainer(model, offload=offload_on_ranks.ALL, offload_folder=BUILD)
    made.step(torch.ones(4, 8))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    del made
    for key, tensor in torch.load(tmp_path / "model.pt").items():
        assert torch.equal(tensor, model.state_dict()[key])
    with torch.no_grad():
        model.weight += 1  # after the trainer has gone


def test_what_a_script_changes_in_between_is_followed():
    """Other memory under a parameter, values written into it, a loaded state, another rate: as without."""

    def trained(**settings):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        parallelism = shoal.Parallelism(**settings)
        trainer = shoal.Trainer(
            model, optimizer, lambda net, x: net(x).square().mean(), parallelism=parallelism
        )
        x = torch.randn(4, 8)
        trainer.step(x)
        saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        model[0].weight.data = torch.randn(8, 8)
        trainer.step(x)
        with torch.no_grad():
            model[2].bias.fill_(0.5)
        trainer.step(x)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        optimizer.param_groups[0]["lr"] = 3e-3
        trainer.step(x)
        trainer.backward(x)
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        return [*model.state_dict().values(), *gradients]

    plain = trained()
    for now, was in zip(trained(offload=offload_on_ranks.ALL, offload_folder=BUILD), plain, strict=True):
        assert torch.equal(now, was)


@pytest.mark.parametrize(
    "words, error",
    [
        ("state", "'state' is none of parameters, optimizer_state, gradients, activations and least=NUMBER"),
        ("least=1MiB", "how small what stays in memory is, and not what goes"),
        ("activations least=-1", "'least=-1'|no number of bytes"),
    ],
)
def test_words_that_say_nothing_are_refused(words, error):
    with pytest.raises(shoal.InvalidInput, match=error):
        shoal.Parallelism(offload=words)


def test_a_folder_that_is_missing_or_in_memory_is_refused(tmp_path):
    with pytest.raises(shoal.InvalidInput, match="does not exist. Remedy: --offload.folder"):
        trainer(offload="activations", offload_folder=tmp_path / "missing")
    if pathlib.Path("/dev/shm").is_dir():
        with pytest.raises(shoal.InvalidInput, match=r"/dev/shm is in main memory \(tmpfs\)"):
            trainer(offload="activations", offload_folder="/dev/shm")
