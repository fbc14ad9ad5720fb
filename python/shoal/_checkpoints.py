# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint of a Trainer in Python holds beside tensors and counts, as the text of its note."""

import json

import torch

from shoal import InvalidInput

_NAMES = {"params", "param_names"}  # of a group: whose options these are
_REMEDY = "Remedy: state_dict(), with torch.save"


_KIND, _ITEMS = "shoal.kind", "items"


def _plain(value):
    """As JSON can hold it and _read gives it back: JSON's keys are strings, and it has no tuples."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, tuple):
        return {_KIND: "tuple", _ITEMS: [_plain(item) for item in value]}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        if _KIND not in value and all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return {_KIND: "dict", _ITEMS: [[_plain(key), _plain(item)] for key, item in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        raise TypeError(f"a Tensor of shape {list(value.shape)} is no JSON, its tolist() is")
    raise TypeError(f"a {type(value).__name__} is no JSON")


def _read(value):
    if isinstance(value, list):
        return [_read(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _KIND not in value:
        return {key: _read(item) for key, item in value.items()}
    items = value[_ITEMS]
    if value[_KIND] == "tuple":
        return tuple(_read(item) for item in items)
    return {_read(key): _read(item) for key, item in items}


def text_of(model, optimizer, seed, note):
    """`model`'s weights are not in it: modules with a state besides are refused."""
    for name, module in model.named_modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            raise InvalidInput(
                f"trainer: module {name or type(module).__name__} has a state besides parameters and buffers "
                f"(get_extra_state), which save() does not write. {_REMEDY}"
            )
    try:
        note = _plain(note)
    except TypeError as error:
        raise InvalidInput(f"trainer: the note of a checkpoint is what JSON can hold: {error}") from None
    groups = []
    for number, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
        options = {}
        for name in group.keys() - _NAMES:
            try:
                options[name] = _plain(group[name])
            except TypeError as error:
                raise InvalidInput(
                    f"trainer: option {name!r} of the optimizer's group {number}, which save() writes as "
                    f"JSON: {error}. {_REMEDY}"
                ) from None
        groups.append(options)
    return json.dumps({"python": 1, "seed": seed, "note": note, "groups": groups})


def parts_of(text, optimizer):
    """(note, seed, groups) of what text_of returned; of a checkpoint from C++ (text, None, None)."""
    try:
        saved = json.loads(text)
    except ValueError:
        saved = None
    if not isinstance(saved, dict) or not {"python", "seed", "note", "groups"} <= saved.keys():
        return text, None, None
    found, here = len(saved["groups"]), len(optimizer.param_groups) if optimizer is not None else 0
    if found != here:
        raise InvalidInput(
            f"trainer: the checkpoint's optimizer has {found} parameter groups, and this one has {here}"
        )
    return _read(saved["note"]), saved["seed"], _read(saved["groups"])


def put(optimizer, groups):
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        for name, value in options.items():
            if isinstance(group.get(name), torch.Tensor):
                group[name].fill_(value)
            else:
                group[name] = value
