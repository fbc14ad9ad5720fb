# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own lists of operators and modules, with sample inputs: one step of each, held against PyTorch.

A sample's tensors that require a gradient are the parameters of a module that calls the operator, its other
tensors are the batch. The loss is a fixed weighting of all floating-point outputs.
"""

import functools
import itertools
import sys
import types
import unittest
import warnings

import torch
from shoal._shoal import _EagerRandom
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as pytree

import shoal

# All that PyTorch's lists need of this package is that it can be imported.
if "expecttest" not in sys.modules:
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)

from torch.testing._internal import common_methods_invocations  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

# PyTorch seeds its generator around every random operator; here both sides draw from Shoal's.
common_methods_invocations.wrapper_set_seed = lambda op, *arguments, **named: op(*arguments, **named)

SAMPLES = 3
SEED = 7


def operators():
    """Those that have a gradient in float64, by name."""
    found = {}
    for op in op_db:
        if op.supports_autograd and op.supports_dtype(torch.float64, "cpu"):
            found[op.name + ("." + op.variant_test_name if op.variant_test_name else "")] = op
    return found


class Called(nn.Module):
    """A sample's call; tensors that require a gradient are parameters, the others come with the batch."""

    def __init__(self, function, arguments):
        super().__init__()
        self.function = function
        self.leaves, self.spec = pytree.tree_flatten(arguments)
        self.batch = []
        for place, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                self.register_parameter(f"p{place}", nn.Parameter(leaf.detach().clone()))
                self.leaves[place] = getattr(self, f"p{place}")
            elif isinstance(leaf, torch.Tensor):
                self.batch.append(place)
        self.given = [self.leaves[place] for place in self.batch] or [torch.zeros(1)]

    def forward(self, *batch):
        leaves = list(self.leaves)
        for place, name in ((int(name[1:]), name) for name in self._parameters):
            leaves[place] = getattr(self, name)
        for place, tensor in zip(self.batch, batch, strict=False):  # an empty batch is one tensor
            leaves[place] = tensor
        positional, named = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*positional, **named)


def loss_of(module, batch):
    total = None
    for number, output in enumerate(pytree.tree_leaves(module(*batch))):
        if not isinstance(output, torch.Tensor) or not (output.is_floating_point() or output.is_complex()):
            continue
        if output.is_complex():
            output = torch.view_as_real(output.resolve_conj())
        weights = torch.linspace(0.5, 1.5 + number, output.numel(), dtype=torch.float64).view(output.shape)
        part = (output * weights).sum()
        total = part if total is None else total + part
    return total


def same(got, wanted, largest, rtol=1e-9):
    if got.shape != wanted.shape:
        return False
    if wanted.is_complex():
        got, wanted = torch.view_as_real(got.resolve_conj()), torch.view_as_real(wanted.resolve_conj())
    if not wanted.numel():
        return True
    nans = wanted.isnan()
    if not torch.equal(nans, got.isnan()):
        return False
    wanted, got = wanted.masked_fill(nans, 0), got.masked_fill(nans, 0)
    infinite = wanted.isinf()
    if not torch.equal(infinite, got.isinf()) or not torch.equal(wanted[infinite], got[infinite]):
        return False
    wanted, got = wanted.masked_fill(infinite, 0), got.masked_fill(infinite, 0)
    bound = rtol * (wanted.abs().max().item() + largest)
    return (got - wanted).abs().max().item() <= bound


def eager(module):
    """(loss, gradients by name) under the first step's draws; None without a gradient or a finite loss."""
    try:
        with _EagerRandom(SEED, 1):
            loss = loss_of(module, module.given)
            if loss is None or not loss.requires_grad or not loss.isfinite():
                return None
            loss.backward()
    except (RuntimeError, NotImplementedError):
        return None
    gradients = {
        name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None
    }
    for parameter in module.parameters():
        parameter.grad = None
    return (loss.item(), gradients) if gradients else None


def step(module, parallelism=None):
    options = {"parallelism": parallelism(module)} if parallelism else {}
    trainer = shoal.Trainer(
        module, torch.optim.SGD(module.parameters(), lr=0.0), loss_of, seed=SEED, **options
    )
    loss = trainer.step(tuple(module.given)).loss
    return loss, trainer.gradients()


def verdict(make, step=step):
    """ "equal", "none" (no gradient), "refused: …", "wrong: …", "error: …" of one call."""
    torch.manual_seed(0)
    wanted = eager(make())
    if wanted is None:
        return "none"
    loss, gradients = wanted
    torch.manual_seed(0)
    module = make()
    try:
        got_loss, got = step(module)
    except shoal.InvalidInput as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001
        return f"error: {type(error).__name__}: {error}"
    if abs(loss - got_loss) > 1e-9 * max(1, abs(loss)):
        return f"wrong: loss {got_loss}, not {loss}"
    if got.keys() != gradients.keys():
        return f"wrong: gradients of {sorted(got)}, not of {sorted(gradients)}"
    numbers = [
        torch.nan_to_num(g.abs().double(), 0, 0, 0).max().item() for g in gradients.values() if g.numel()
    ]
    for name, gradient in gradients.items():
        if not same(got[name], gradient, max(numbers, default=0)):
            return f"wrong: gradient {name}"
    return "equal"


def verdicts_of_operator(op, samples=SAMPLES, step=step):
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    found = []
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=True), samples):

        def call(*arguments, sample=sample, **named):
            return sample.output_process_fn_grad(op(*arguments, **named))

        arguments = ((sample.input, *sample.args), sample.kwargs)
        found.append(verdict(functools.partial(Called, call, arguments), step))
    return found


class Within(nn.Module):
    """A module of PyTorch's with its sample's arguments."""

    def __init__(self, module, arguments):
        super().__init__()
        self.module = module
        self.call = Called(module, arguments)
        self.given = self.call.given

    def forward(self, *batch):
        return self.call(*batch)


def modules():
    return {info.formatted_name: info for info in module_db}


def verdicts_of_module(info, samples=SAMPLES):
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    found = []
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float64, requires_grad=True, training=True
    )
    for sample in itertools.islice(inputs, samples):

        def make(sample=sample):
            made = sample.constructor_input
            module = info.module_cls(*made.args, **made.kwargs).double().train()
            given = sample.forward_input
            if any(isinstance(each, UninitializedParameter) for each in module.parameters()):
                module(*given.args, **given.kwargs)  # a lazy module knows its shapes from then on
            return Within(module, (given.args, given.kwargs))

        found.append(verdict(make))
    return found


def summary(verdicts):
    """Of one operator's samples, the worst: wrong, error, refused, equal, none."""
    kinds = ("wrong", "error", "refused", "equal", "none")
    return min(verdicts, key=lambda text: kinds.index(text.split(":")[0]), default="none")
