# SPDX-License-Identifier: Apache-2.0
"""What bad input gets: an error that names the thing, where it stands, and the remedy."""

import subprocess
import sys

import pytest
import torch
from built import BUILD
from torch import nn

import shoal


def trainer(loss, model=None):
    model = model or nn.Linear(4, 3)
    return shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)


def line_of(function, text):
    code = function.__code__
    source = open(code.co_filename).read().splitlines()
    return next(n for n in range(code.co_firstlineno, len(source)) if text in source[n - 1])


def test_control_flow_on_a_parameter_names_file_line_and_remedy():
    def loss(model, x):
        h = model(x)
        if h.sum() > 0:  # the read
            h = h * 2
        return h.mean()

    with pytest.raises(shoal.InvalidInput) as error:
        trainer(loss).step(torch.randn(2, 4))
    text = str(error.value)
    assert f"{__file__}:{line_of(loss, '# the read')} (loss)" in text
    assert "Remedy: keep it a tensor: where, masks" in text and "depends on a parameter" in text


def test_a_notebooks_cell_is_named():
    cell = "def loss(model, x):\n    h = model(x)\n    return h.mean() if h.max() > 0 else h.sum()\n"
    scope = {}
    exec(compile(cell, "<ipython-input-3-shoal>", "exec"), scope)
    with pytest.raises(shoal.InvalidInput, match=r"at <ipython-input-3-shoal>:3 \(loss\)"):
        trainer(scope["loss"]).step(torch.randn(2, 4))


@pytest.mark.parametrize(
    "use", [lambda h: h.numpy(), lambda h: h.data_ptr(), lambda h: h.tolist(), lambda h: h.untyped_storage()]
)
def test_memory_of_an_activation_cannot_be_asked_for(use):
    def loss(model, x):
        h = model(x)
        use(h.detach())
        return h.mean()

    with pytest.raises(shoal.InvalidInput, match=r"test_errors\.py:\d+ .*Remedy: "):
        trainer(loss).step(torch.randn(2, 4))


def test_an_activation_cannot_be_printed_while_it_is_recorded():
    def loss(model, x):
        h = model(x)
        print(h)
        return h.mean()

    with pytest.raises(shoal.InvalidInput, match=r"test_errors\.py:\d+"):
        trainer(loss).step(torch.randn(2, 4))


def test_an_activation_that_is_kept_has_the_values_of_the_step():
    kept = []

    def loss(model, x):
        kept.append(model(x))
        return kept[-1].mean()

    x = torch.randn(2, 4)
    model = nn.Linear(4, 3)
    wanted = model(x)
    shoal.Trainer(model, torch.optim.SGD(model.parameters()), loss).step(x)
    assert len(kept) == 1 and torch.equal(kept[0], wanted)


def test_an_unsupported_optimizer_is_named_with_those_that_are():
    model = nn.Linear(4, 3)
    with pytest.raises(
        shoal.InvalidInput, match=r"LBFGS, which Shoal does not have; it has .*torch\.optim\.AdamW"
    ):
        shoal.Trainer(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(shoal.InvalidInput, match="group 0 has differentiable=True"):
        shoal.Trainer(model, torch.optim.Adam(model.parameters(), differentiable=True))
    with pytest.raises(shoal.InvalidInput, match=r"of shape \[3, 4\], is none of the model's"):
        shoal.Trainer(nn.Linear(4, 3), torch.optim.SGD(model.parameters()))


def test_an_item_that_is_no_batch_is_named():
    with pytest.raises(shoal.InvalidInput, match="item 1 of the batch is a set"):
        trainer(lambda model, batch: model(batch[0]).mean()).step((torch.randn(2, 4), {1, 2}))


def test_a_sparse_tensor_is_refused_with_what_helps():
    weight = nn.Parameter(torch.randn(4, 3))

    class Gathers(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, ids):
            return torch.gather(self.weight, 0, ids, sparse_grad=True)

    with pytest.raises(shoal.InvalidInput, match=r"of a sparse tensor, in .* gather\(\) without sparse_grad"):
        trainer(lambda model, ids: model(ids).sum(), Gathers()).step(torch.tensor([[1, 2, 0]]))


def test_no_loss_says_what_was_returned():
    with pytest.raises(shoal.InvalidInput, match=r"the model returned tensor, in which there is no loss"):
        model = nn.Linear(4, 3)
        shoal.Trainer(model, torch.optim.SGD(model.parameters())).step(torch.randn(2, 4))
    with pytest.raises(shoal.InvalidInput, match="does not depend on any parameter"):
        trainer(lambda model, x: model(x).detach().mean()).step(torch.randn(2, 4))


def test_a_step_that_is_another_each_time_is_refused():
    calls = []

    def loss(model, x):
        calls.append(1)
        return (model(x) * len(calls)).mean()

    counted = trainer(loss)
    counted.step(torch.randn(2, 4))  # as eager
    with pytest.raises(
        shoal.InvalidInput, match=r"changes loss_fn\.calls while it runs.*1 items → a list of 2"
    ):
        counted.step(torch.randn(2, 4))
    assert calls == [1]


def test_errors_of_the_users_code_come_through_as_they_are():
    def loss(model, x):
        raise KeyError("mine")

    t = trainer(loss)
    with pytest.raises(KeyError, match="mine") as error:
        t.step(torch.randn(2, 4))
    assert error.traceback[-1].name == "loss"
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trainer(lambda model, x: model(x).mean()).step(torch.randn(2, 5))


def test_a_loss_that_is_not_finite_updates_nothing():
    model = nn.Linear(4, 3)
    t = trainer(lambda model, x: model(x).mean(), model)
    before = model.weight.detach().clone()
    with pytest.raises(shoal.InvalidInput, match="the loss of step 1 is nan"):
        t.step(torch.full((2, 4), torch.nan))
    assert torch.equal(model.weight, before)


def test_errors_are_both_shoals_and_pythons():
    assert issubclass(shoal.InvalidInput, shoal.Error) and issubclass(shoal.InvalidInput, ValueError)
    assert issubclass(shoal.Timeout, TimeoutError) and issubclass(shoal.Error, RuntimeError)


def test_another_torch_is_told_at_import():
    code = "import torch; torch.__version__ = '2.12.1'; import shoal"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BUILD / "python", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "shoal was built for torch 2.13.0, and this is torch 2.12.1. Remedy: " in done.stderr
