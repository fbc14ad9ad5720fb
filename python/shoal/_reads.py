# SPDX-License-Identifier: Apache-2.0
"""tolist() and numpy() of a tensor that is recorded: what depends on the batch alone is read, and guarded."""

import torch


def make_readable():
    """For as long as a model is recorded; returns what undoes it. Other tensors are not touched."""
    names = ("numpy", "tolist")
    kept = {name: torch.Tensor.__dict__[name] for name in names if name in torch.Tensor.__dict__}
    for name in names:
        setattr(torch.Tensor, name, _reading(getattr(torch.Tensor, name)))

    def undo():
        for name in names:
            delattr(torch.Tensor, name)
        for name, method in kept.items():
            setattr(torch.Tensor, name, method)

    return undo


def _is_recorded(tensor):
    return torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.PrivateUse1)


def _reading(method):
    def read(self, *arguments, **named):
        if _is_recorded(self):
            self = torch.ops.shoal.read(self.detach())
        return method(self, *arguments, **named)

    return read
