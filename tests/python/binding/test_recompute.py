# SPDX-License-Identifier: Apache-2.0
"""Recompute from Python: `Parallelism(recompute=…)`, of one rank and of several."""

import re

import pytest
import recompute_on_ranks
import torch
from test_parallel import run_ranks

import shoal


def test_no_bit_changes_on_one_rank():
    recompute_on_ranks.main()


def test_no_bit_changes_on_two_ranks():
    done = run_ranks(2, "recompute_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("all bits are equal") == 2


@pytest.mark.parametrize(
    "words, error",
    [
        ("fulll", "'fulll' is none of none, full, selective and auto"),
        ("auto", "auto is to fit in so many bytes of activations, and none are said"),
        ("full bytes=1MiB", "bytes are for auto alone, and the mode is full"),
        ("none h.*", "modules are for full and selective"),
    ],
)
def test_words_that_say_nothing_are_refused(words, error):
    with pytest.raises(shoal.InvalidInput, match=error):
        shoal.Parallelism(recompute=words)


def test_bytes_below_the_least_are_refused_with_it_and_the_least_is_enough():
    torch.manual_seed(1)
    model = recompute_on_ranks.gpt2()
    with pytest.raises(shoal.Infeasible, match="the least that they take is") as refused:
        recompute_on_ranks.trained("gpt2", model, "auto bytes=1KiB")
    least = re.search(r"the least that they take is (\d+) bytes", str(refused.value)).group(1)
    recompute_on_ranks.compare("gpt2", recompute_on_ranks.gpt2(), f"auto bytes={least}")


def test_a_path_of_no_module_is_refused_with_the_nearest_one():
    model = recompute_on_ranks.convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallelism = shoal.Parallelism(recompute="full blocks.1")
    trainer = shoal.Trainer(model, optimizer, recompute_on_ranks.loss_of, parallelism=parallelism)
    with pytest.raises(shoal.InvalidInput, match=r"no module is named 'blocks.1'; the nearest is '\*"):
        trainer.step(recompute_on_ranks.batch_of("", 0))
