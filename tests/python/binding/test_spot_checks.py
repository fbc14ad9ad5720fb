# SPDX-License-Identifier: Apache-2.0
"""A model that reads what nobody can watch is recorded again now and then, and compared."""

import pytest
import torch
from torch import nn

import shoal


class Scaled(nn.Module):
    def __init__(self, path):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.path = path

    def forward(self, x):
        return self.fc(x) * float(self.path.read_text())


def trainer_of(path, **options):
    path.write_text("1.0")
    model = Scaled(path).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, shoal.Trainer(model, optimizer, lambda model, x: model(x).square().mean(), **options)


def test_a_number_that_forward_reads_from_a_file_is_noticed_before_the_update(tmp_path):
    path = tmp_path / "beta"
    model, trainer = trainer_of(path)
    x = torch.randn(3, 4).double()
    trainer.step(x)
    before = model.fc.weight.detach().clone()
    path.write_text("0.5")
    with pytest.raises(
        shoal.InvalidInput, match=r"other=1\.0 then, other=0\.5 now.*test_spot_checks\.py:\d+"
    ):
        trainer.step(x)
    assert torch.equal(model.fc.weight, before)
    trainer.forget_graphs()
    wanted = model(x).square().mean().item()
    assert trainer.step(x).loss == pytest.approx(wanted)


def test_spot_checks_can_be_off(tmp_path):
    path = tmp_path / "beta"
    _, trainer = trainer_of(path, spot_checks=-1)
    x = torch.randn(3, 4).double()
    for beta in "12345678":
        path.write_text(beta)
        trainer.step(x)
