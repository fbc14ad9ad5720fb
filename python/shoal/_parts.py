# SPDX-License-Identifier: Apache-2.0
"""Parameters that ranks keep in parts have no memory in the module: PyTorch would read address 0."""

import torch

from shoal._shoal import InvalidInput


def _is_recorded():
    """Whether a Trainer calls the module, which needs shapes alone."""
    return torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PrivateUse1)


def _refuse(module, *_):
    if _is_recorded():
        return
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.numel() and not parameter.untyped_storage().nbytes():
            raise InvalidInput(
                f"trainer: parameter {name} of a {type(module).__name__} is kept in parts by the ranks; call "
                "trainer.materialize() on every rank, and use the module before the next step"
            )


def guard(model):
    """Modules with such parameters throw when they are called or saved, for as long as they have them."""
    for module in model.modules():
        if _refuse in module._forward_pre_hooks.values():
            continue
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(_refuse)
            module.register_state_dict_pre_hook(_refuse)
