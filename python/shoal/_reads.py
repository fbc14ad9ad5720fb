# SPDX-License-Identifier: Apache-2.0
"""What of torch is another function while a model is recorded.

new_tensor() and new() look for the module of a tensor's backend, which recorded ones have none of, and
isinstance(x, torch.FloatTensor) looks at it.

tolist() and numpy() of a recorded tensor read what depends on the batch alone, and are guarded. manual_seed()
is refused: random numbers of a captured step follow the trainer's seed, whatever PyTorch's generator says.
"""

import torch


def make_readable(ignores):
    """For as long as a model is recorded; returns what undoes it, and the names of files that were read.
    Other tensors are not touched."""
    from shoal._outside import watch_outside
    from shoal._shoal import InvalidInput, _set_instance_check

    def manual_seed(seed):
        raise InvalidInput(
            f"capture: the model calls torch.manual_seed({seed}) while it runs, and a captured step draws "
            "from the trainer's seed alone. Remedy: Trainer(..., seed=...), or draw outside of the model and "
            "pass the numbers in the batch"
        )

    def initial_seed():
        raise InvalidInput(
            "capture: the model reads torch.initial_seed() while it runs, and a captured step would keep it. "
            "Remedy: read it between steps, and give it to the model in an attribute or the batch"
        )

    seeding, asking = torch.manual_seed, torch.initial_seed
    torch.manual_seed = torch.random.manual_seed = manual_seed
    torch.initial_seed = torch.random.initial_seed = initial_seed
    others = {name: _reading(getattr(torch.Tensor, name)) for name in ("numpy", "tolist")}
    others |= {"new_tensor": _new_tensor(torch.Tensor.new_tensor), "new": _new(torch.Tensor.new)}
    names = tuple(others)
    kept = {name: torch.Tensor.__dict__[name] for name in names if name in torch.Tensor.__dict__}
    for name, method in others.items():
        setattr(torch.Tensor, name, method)
    check = _set_instance_check(None)
    _set_instance_check(_is_instance(check))
    leave_outside, files = watch_outside(ignores)

    def undo():
        leave_outside()
        _set_instance_check(check)
        torch.manual_seed = torch.random.manual_seed = seeding
        torch.initial_seed = torch.random.initial_seed = asking
        for name in names:
            delattr(torch.Tensor, name)
        for name, method in kept.items():
            setattr(torch.Tensor, name, method)

    return undo, files


def _is_recorded(tensor):
    return torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.PrivateUse1)


def _reading(method):
    def read(self, *arguments, **named):
        if _is_recorded(self):
            self = torch.ops.shoal.read(self.detach())
        return method(self, *arguments, **named)

    return read


def _new_tensor(method):
    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **named):
        if not _is_recorded(self):
            given = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
            return method(self, data, **given, **named)
        dtype, device = dtype or self.dtype, device or self.device
        if isinstance(data, torch.Tensor):
            made = data.detach().to(device=device, dtype=dtype, copy=True)
        else:
            made = torch.tensor(data, dtype=dtype, device=device)
        return made.requires_grad_(requires_grad)

    return new_tensor


def _new(method):
    def new(self, *arguments, **named):
        if not _is_recorded(self):
            return method(self, *arguments, **named)
        options = {"dtype": self.dtype, "device": named.get("device") or self.device}
        [first, *rest] = arguments or [named.get("size", named.get("other", named.get("data", 0)))]
        if isinstance(first, torch.Tensor) and first.dim() > 0 and not rest:
            return first.detach()
        if isinstance(first, torch.Size):
            return torch.empty(first, **options)
        if isinstance(first, list | tuple):
            return torch.tensor(first, **options)
        return torch.empty(*arguments or (0,), **options)

    return new


def _is_instance(check):
    def is_instance(kind, object):
        if not isinstance(object, torch.Tensor) or not _is_recorded(object):
            return check(kind, object)
        return object.type() == f"{kind.__module__}.{kind.__name__}"

    return is_instance
