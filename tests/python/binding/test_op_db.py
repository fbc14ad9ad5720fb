# SPDX-License-Identifier: Apache-2.0
"""Every operator and module that PyTorch tests its own gradients with: equal to PyTorch in float64, under the
same draws of random numbers, or refused for a reason that is written down in op_db_refused.py."""

import ast

import op_db
import op_db_refused
import pytest
from test_parallel import run_ranks

PARTS = 8  # operators are tested in this many cases, so that one that ends the process tells where


def check(verdicts, refused):
    worst = {name: op_db.summary(found) for name, found in verdicts.items()}
    bad = {name: text for name, text in worst.items() if text.startswith(("wrong", "error"))}
    assert not bad, bad
    new = {name: text for name, text in worst.items() if text.startswith("refused") and name not in refused}
    assert not new, f"refused, and not in op_db_refused.py: {new}"
    gone = [name for name, text in worst.items() if text == "equal" and name in refused]
    assert not gone, f"no longer refused, take them out of op_db_refused.py: {gone}"


def part_of(table, part):
    return {name: table[name] for name in sorted(table)[part::PARTS]}


@pytest.mark.parametrize("part", range(PARTS))
def test_operators_equal_pytorch_or_are_refused_for_a_known_reason(part):
    found = {name: op_db.verdicts_of_operator(op) for name, op in part_of(op_db.operators(), part).items()}
    check(found, op_db_refused.OPERATORS)


@pytest.mark.parametrize("part", range(PARTS))
def test_modules_equal_pytorch_or_are_refused_for_a_known_reason(part):
    found = {name: op_db.verdicts_of_module(info) for name, info in part_of(op_db.modules(), part).items()}
    check(found, op_db_refused.MODULES)


def test_most_operators_have_a_gradient_and_few_are_refused():
    names = set(op_db.operators())
    assert len(names) >= 535
    assert set(op_db_refused.OPERATORS) <= names
    assert len(op_db_refused.OPERATORS) + len(op_db_refused.MODULES) <= 10


def test_operators_are_on_two_ranks_what_they_are_on_one_or_are_refused():
    done = run_ranks(2, "op_db_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    *lines, counts = (line.removeprefix("[0] ") for line in done.stdout.splitlines())
    verdicts = dict(line.split("\t", 1) for line in lines)
    assert all(text.startswith("refused") for text in verdicts.values()), verdicts
    assert set(verdicts) <= set(op_db_refused.OPERATORS), verdicts
    assert ast.literal_eval(counts.removeprefix("counts "))["equal"] >= 525
