# SPDX-License-Identifier: Apache-2.0
"""What of torch is another function while a model is recorded.

new_tensor() and new() look for the module of a tensor's backend, which recorded ones have none of, and
isinstance(x, torch.FloatTensor) looks at it. Other threads have torch as it is.

tolist() and numpy() of a recorded tensor read what depends on the batch alone, and are guarded. manual_seed()
is refused: random numbers of a captured step follow the trainer's seed, whatever PyTorch's generator says.
"""

import threading

import torch

from shoal._replaced import replace


def make_readable(ignores):
    """For as long as a model is recorded; returns what undoes it, and the names of files that were read.
    Other tensors are not touched."""
    from shoal._outside import watch_outside
    from shoal._shoal import InvalidInput

    def manual_seed(ordinary, seed):
        raise InvalidInput(
            f"capture: the model calls torch.manual_seed({seed}) while it runs, and a captured step draws "
            "from the trainer's seed alone. Remedy: Trainer(..., seed=...), or draw outside of the model and "
            "pass the numbers in the batch"
        )

    def initial_seed(ordinary):
        raise InvalidInput(
            "capture: the model reads torch.initial_seed() while it runs, and a captured step would keep it. "
            "Remedy: read it between steps, and give it to the model in an attribute or the batch"
        )

    check_instances()
    leave_outside, files = watch_outside(ignores)
    leave = replace(
        {
            (torch, "manual_seed"): manual_seed,
            (torch.random, "manual_seed"): manual_seed,
            (torch, "initial_seed"): initial_seed,
            (torch.random, "initial_seed"): initial_seed,
            (torch.Tensor, "numpy"): _read,
            (torch.Tensor, "tolist"): _read,
            (torch.Tensor, "new_tensor"): _new_tensor,
            (torch.Tensor, "new"): _new,
        }
    )

    def undo():
        leave()
        leave_outside()
        check_ordinarily()

    return undo, files


def _is_recorded(tensor):
    return torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.PrivateUse1)


def _read(ordinary, self, *arguments, **named):
    if _is_recorded(self):
        self = torch.ops.shoal.read(self.detach())
    return ordinary(self, *arguments, **named)


def _new_tensor(ordinary, self, data, *, dtype=None, device=None, requires_grad=False, **named):
    if not _is_recorded(self):
        given = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
        return ordinary(self, data, **given, **named)
    dtype, device = dtype or self.dtype, device or self.device
    if isinstance(data, torch.Tensor):
        made = data.detach().to(device=device, dtype=dtype, copy=True)
    else:
        made = torch.tensor(data, dtype=dtype, device=device)
    return made.requires_grad_(requires_grad)


def _new(ordinary, self, *arguments, **named):
    if not _is_recorded(self):
        return ordinary(self, *arguments, **named)
    options = {"dtype": self.dtype, "device": named.get("device") or self.device}
    [first, *rest] = arguments or [named.get("size", named.get("other", named.get("data", 0)))]
    if isinstance(first, torch.Tensor) and first.dim() > 0 and not rest:
        return first.detach()
    if isinstance(first, torch.Size):
        return torch.empty(first, **options)
    if isinstance(first, list | tuple):
        return torch.tensor(first, **options)
    return torch.empty(*arguments or (0,), **options)


_lock = threading.Lock()
_recording = 0  # threads
_ordinary_check = None


def check_instances():
    """isinstance(x, torch.FloatTensor), which the module of x's backend answers, answers recorded ones."""
    from shoal._shoal import _set_instance_check

    global _recording, _ordinary_check
    with _lock:
        _recording += 1
        if _recording == 1:
            _ordinary_check = _set_instance_check(None)
            _set_instance_check(_is_instance)


def check_ordinarily():
    from shoal._shoal import _set_instance_check

    global _recording
    with _lock:
        _recording -= 1
        if not _recording:
            _set_instance_check(_ordinary_check)


def _is_instance(kind, object):
    if not isinstance(object, torch.Tensor) or not _is_recorded(object):
        return _ordinary_check(kind, object)
    return object.type() == f"{kind.__module__}.{kind.__name__}"
