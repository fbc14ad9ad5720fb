# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models, unmodified: five updates in float64 are those of plain PyTorch."""

import families
import pytest


@pytest.mark.parametrize(
    "family", families.JUDGED + families.UNPREPARED + families.OTHERS, ids=lambda family: family.__name__
)
def test_five_updates_are_those_of_plain_pytorch(compare, family):
    model, batch = family()
    both = compare(model)
    both.run(batch)
    graph = both.trainer.graph(batch)
    assert graph.flops > 0
    assert graph.unknown_work == [], "in neither table of ir/flops.cpp"
