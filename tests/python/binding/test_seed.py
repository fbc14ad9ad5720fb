# SPDX-License-Identifier: Apache-2.0
"""Where a trainer's noise comes from."""

import pytest
import torch
from test_parallel import run_ranks
from torch import nn

import shoal


def losses(**options):
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    trainer = shoal.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.0), lambda m, x: m(x).square().mean(), **options
    )
    return [trainer.step(torch.ones(8, 4)).loss for _ in range(3)]


def test_manual_seed_decides_and_two_trainers_differ():
    torch.manual_seed(5)
    first, second = losses(), losses()
    torch.manual_seed(5)
    assert [losses(), losses()] == [first, second]
    assert first != second
    torch.manual_seed(6)
    assert losses() != first


def test_torchs_own_draws_are_as_without_a_trainer():
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
    before = torch.get_rng_state()
    trainers = [
        shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), lambda m, x: m(x).square().mean())
        for _ in range(2)
    ]
    first, second = (trainer.step(torch.ones(8, 4)).loss for trainer in trainers)
    assert torch.equal(torch.get_rng_state(), before)
    assert first != second


def test_a_seed_that_is_given_counts_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = losses(seed=3)
    torch.manual_seed(6)
    assert losses(seed=3) == first != losses(seed=4)
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), before)


SCRIPT = """
import torch, shoal
from torch import nn
torch.manual_seed(shoal.rank())  # as many scripts do
model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
parallelism = PARALLELISM
trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), lambda m, x: m(x).square().mean(),
                        parallelism=parallelism)
print(f"loss {trainer.step(torch.ones(4, 4)).loss}")
"""


def test_ranks_draw_from_rank_0s_seed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("PARALLELISM", "shoal.Parallelism()"))
    done = run_ranks(2, str(script))
    assert done.returncode == 0, done.stderr
    assert len({line.split()[-1] for line in done.stdout.splitlines()}) == 1, done.stdout


def test_a_trainer_without_parallelism_in_a_job_of_several_ranks_warns(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("PARALLELISM", "None"))
    done = run_ranks(2, str(script))
    assert done.returncode == 0, done.stderr
    said = "this job has 2 ranks, and a Trainer without parallelism trains alone on each"
    assert done.stderr.count(said) == 1, done.stderr


@pytest.mark.parametrize("seed", [-1, "1"])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(TypeError):
        losses(seed=seed)
