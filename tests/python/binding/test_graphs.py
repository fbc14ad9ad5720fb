# SPDX-License-Identifier: Apache-2.0
"""Graphs of Hugging Face's families as text, for tests that have no Python: tests/golden/graphs.

Written anew with SHOAL_UPDATE_GOLDEN=1. Forward and backward of one layer, dropout on.
"""

import os
import pathlib
import re
import sys

import families
import pytest
import torch

GRAPHS = pathlib.Path(__file__).parents[2] / "golden" / "graphs"
LAYERS = ["num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"]


def of_one_layer(model, config, batch):
    for name in LAYERS:
        if hasattr(config, name):
            setattr(config, name, 1)
    torch.manual_seed(1)
    return model(config), batch


def gradients_of(text):
    """Its nodes without the update; what leaves it does not matter here."""
    nodes = text[: text.index("\nreturn")].splitlines()
    return "\n".join([*(line for line in nodes if " @update" not in line), "return", ""])


def ops_of(text):
    return set(re.findall(r" = ([\w:.]+)\(", text))


@pytest.mark.parametrize("family", families.JUDGED, ids=lambda family: family.__name__)
def test_golden_graphs_have_the_ops_of_the_families(monkeypatch, family):
    import shoal

    monkeypatch.setattr(families, "make", of_one_layer)
    model, batch = family()
    batch = {name: value.float() if value.is_floating_point() else value for name, value in batch.items()}
    trainer = shoal.Trainer(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), lambda model, batch: model(**batch).loss
    )
    text = gradients_of(str(trainer.graph(batch)))
    path = GRAPHS / f"{family.__name__}.txt"
    if os.environ.get("SHOAL_UPDATE_GOLDEN"):
        path.write_text(text)
    assert ops_of(text) == ops_of(path.read_text())


def test_shapes_are_asked_of_libtorch_not_of_pytorchs_python():
    """Its Python gives other strides here and there, and takes most of a capture's time."""
    import shoal

    model, batch = families.gpt2()
    model.double()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: m(**b).loss)
    asked = 0

    def count(frame, event, _):
        nonlocal asked
        asked += event == "call" and frame.f_code.co_filename.endswith("torch/_prims_common/wrappers.py")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        trainer.step(batch)
    finally:
        sys.setprofile(before)
    assert asked < 250
