# SPDX-License-Identifier: Apache-2.0
"""Folders of torch.distributed.checkpoint and files of safetensors, by PyTorch's own functions."""

import dcp_on_ranks
import pytest
import safetensors.torch
import torch
from test_parallel import run_ranks

import shoal


def test_a_folder_goes_from_pytorch_to_shoal_and_back(tmp_path):
    dcp_on_ranks.check(tmp_path, None)


@pytest.mark.parametrize("layout", ["", "zero1", "zero3"])
def test_likewise_on_two_ranks(tmp_path, layout):
    done = run_ranks(2, "dcp_on_ranks.py", tmp_path, layout)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("from folder to folder") == 2


def test_safetensors_has_the_weights_of_a_trained_model(tmp_path):
    model, optimizer = dcp_on_ranks.make()
    trainer = shoal.Trainer(model, optimizer, dcp_on_ranks.loss_of)
    trainer.step(dcp_on_ranks.batch_of(0))
    safetensors.torch.save_model(model, tmp_path / "model.safetensors")
    other, other_optimizer = dcp_on_ranks.make()
    follower = shoal.Trainer(other, other_optimizer, dcp_on_ranks.loss_of)
    safetensors.torch.load_model(other, tmp_path / "model.safetensors")
    batch = dcp_on_ranks.batch_of(1)
    assert follower.evaluate(batch).loss == trainer.evaluate(batch).loss
    for now, then in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(now, then)
