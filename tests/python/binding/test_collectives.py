# SPDX-License-Identifier: Apache-2.0
"""shoal.collectives: each operation with its gradient, under `shoal run` and torchrun, and by itself."""

import ast
import inspect
import sys

import pytest
import torch
from built import ROOT
from test_parallel import run, run_ranks
from torch import nn

import shoal
from shoal import collectives


@pytest.mark.parametrize("ranks", [2, 3])
def test_operations_and_gradients_are_those_of_one_process(ranks):
    done = run_ranks(ranks, "collectives_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count(f"of {ranks}: 10 operations are right") == ranks


def test_they_work_under_torchrun():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run(*torchrun, "collectives_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("operations are right") == 2


def test_ranks_that_call_different_things_are_told():
    script = (
        "import torch, shoal\n"
        "from shoal import collectives as c\n"
        "x = torch.ones(2 + shoal.rank())\n"
        "try:\n"
        "    c.all_reduce(x)\n"
        "except shoal.InvalidInput as error:\n"
        "    print('told:', error)\n"
    )
    done = run_ranks(2, "-c", script)
    assert done.stdout.count("told:") == 2, done.stdout + done.stderr


def test_a_script_by_itself_is_a_group_of_one():
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    for result in (
        collectives.all_reduce(x),
        collectives.broadcast(x, 0),
        collectives.all_gather(x),
        collectives.reduce_scatter(x, "average"),
        collectives.all_to_all(x),
    ):
        assert torch.equal(result, x)
    collectives.barrier()
    group = collectives.Group()
    assert isinstance(group, collectives.Group)
    assert group.ranks == [0]
    assert torch.autograd.gradcheck(collectives.all_reduce, x)


@pytest.mark.parametrize("of", ["activation", "attribute", "nothing"])
def test_inside_of_a_captured_model_they_are_refused_by_name(of):
    class Net(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.count = torch.ones(1)

        def forward(self, x):
            y = super().forward(x)
            if of == "activation":
                return collectives.all_reduce(y)
            if of == "attribute":
                return y * collectives.all_reduce(self.count)
            collectives.barrier()
            return y

    model = Net()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, x: m(x).sum())
    with pytest.raises(shoal.InvalidInput, match=r"calls shoal\.collectives\.\w+ while it is recorded"):
        trainer.step(torch.ones(2, 3))


def test_each_function_says_what_it_does():
    tree = ast.parse((ROOT / "python/shoal/collectives.py").read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert functions == set(collectives.__all__)
    assert all(inspect.getdoc(getattr(collectives, name)) for name in functions)
