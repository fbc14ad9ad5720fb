# SPDX-License-Identifier: Apache-2.0
"""A collator that pads, so that batches have few sizes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from shoal._shoal import InvalidInput


class PaddingCollator:
    """collate_fn of a DataLoader whose batches have few sizes: pads tensors of samples to multiples."""

    def __init__(
        self,
        values: Mapping[str, float],
        multiple: int = 64,
        *,
        dim: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        if multiple < 1:
            raise InvalidInput(f"PaddingCollator: the multiple is {multiple}; give at least 1")
        if not values:
            raise InvalidInput('PaddingCollator: no item is to be padded; name some, as {"input_ids": 0}')
        self.values = dict(values)
        self.multiple = multiple
        self.dim = dim
        self.collate = collate

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Any:
        lengths = {
            name: self._length([self._item(sample, name) for sample in samples]) for name in self.values
        }
        return self.collate([self._padded(sample, lengths) for sample in samples])

    def _item(self, sample: Mapping[str, Any], name: str) -> torch.Tensor:
        if not isinstance(sample, Mapping) or name not in sample:
            has = f"has {sorted(sample)}" if isinstance(sample, Mapping) else f"is a {type(sample).__name__}"
            raise InvalidInput(f"PaddingCollator: {name!r} is to be padded, and a sample {has}")
        tensor = torch.as_tensor(sample[name])
        if not 0 <= self.dim < tensor.dim():
            raise InvalidInput(
                f"PaddingCollator: {name!r} of a sample has {tensor.dim()} dims, "
                f"and dim {self.dim} is to be padded"
            )
        return tensor

    def _length(self, tensors: list[torch.Tensor]) -> int:
        longest = max(tensor.shape[self.dim] for tensor in tensors)
        return -(-longest // self.multiple) * self.multiple

    def _padded(self, sample: Mapping[str, Any], lengths: Mapping[str, int]) -> dict[str, Any]:
        made = dict(sample)
        for name, length in lengths.items():
            tensor = self._item(sample, name)
            more = [0] * (2 * (tensor.dim() - self.dim))  # from the last dim
            more[-1] = length - tensor.shape[self.dim]
            made[name] = torch.nn.functional.pad(tensor, more, value=self.values[name])
        return made
