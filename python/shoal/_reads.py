# SPDX-License-Identifier: Apache-2.0
"""What of torch is another function while a model is recorded.

tolist() and numpy() of a recorded tensor read what depends on the batch alone, and are guarded. manual_seed()
is refused: random numbers of a captured step follow the trainer's seed, whatever PyTorch's generator says.
"""

import torch


def make_readable():
    """For as long as a model is recorded; returns what undoes it. Other tensors are not touched."""
    from shoal._shoal import InvalidInput

    def manual_seed(seed):
        raise InvalidInput(
            f"capture: the model calls torch.manual_seed({seed}) while it runs, and a captured step draws "
            "from the trainer's seed alone. Remedy: Trainer(..., seed=...), or draw outside of the model and "
            "pass the numbers in the batch"
        )

    seeding = torch.manual_seed
    torch.manual_seed = torch.random.manual_seed = manual_seed
    names = ("numpy", "tolist")
    kept = {name: torch.Tensor.__dict__[name] for name in names if name in torch.Tensor.__dict__}
    for name in names:
        setattr(torch.Tensor, name, _reading(getattr(torch.Tensor, name)))

    def undo():
        torch.manual_seed = torch.random.manual_seed = seeding
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
