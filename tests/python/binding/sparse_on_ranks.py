# SPDX-License-Identifier: Apache-2.0
"""One rank of test_sparse.py's job: a graph that all ranks have, with all of its nodes or parts of them."""

import torch
from conftest import same
from test_sparse import GCN, adjacency, graph, loss_of

import shoal

WHOLE = ["adj", "x", "y"]


def trained(parallelism, loss=loss_of, part=lambda batch: batch):
    model = GCN().double()
    trainer = shoal.Trainer(
        model, torch.optim.AdamW(model.parameters(), lr=0.1), loss, parallelism=parallelism
    )
    losses = [trainer.step(part(graph(step % 2))).loss for step in range(4)]
    return losses, trainer.state_dict()["model"]


def check_equal(parallelism, loss=loss_of, part=lambda batch: batch):
    losses, parameters = trained(parallelism, loss, part)
    wanted, wanted_parameters = trained(None, loss)
    assert max(abs(a - b) for a, b in zip(losses, wanted, strict=True)) < 1e-9, (losses, wanted)
    same(parameters, wanted_parameters, 1e-9, "parameter")


for options in ({}, {"shard": 2}):
    check_equal(shoal.Parallelism(replicated_inputs=WHOLE, **options))
    # each rank gives its nodes; the adjacency is whole, in the batch or closed over
    parallelism = shoal.Parallelism(replicated_inputs=["adj"], **options)
    rows = shoal.samples_of(12, parallelism)

    def own(batch, rows=rows):
        return {**batch, "x": batch["x"][rows], "y": batch["y"][rows]}

    check_equal(parallelism, part=own)
    closed = adjacency()
    check_equal(
        shoal.Parallelism(**options),
        lambda model, batch, closed=closed: loss_of(model, {"x": batch["x"], "y": batch["y"], "adj": closed}),
        lambda batch, own=own: {name: tensor for name, tensor in own(batch).items() if name != "adj"},
    )
try:
    trained(shoal.Parallelism())
except shoal.InvalidInput as error:
    assert "item adj of the batch is sparse" in str(error) and "replicated_inputs" in str(error), error
else:
    raise AssertionError("it was cut")
print("all is well")
