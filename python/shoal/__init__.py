# SPDX-License-Identifier: Apache-2.0
"""Trains a PyTorch model through its captured graph.

A `Trainer` takes a model and one of torch.optim's optimizers; its step(batch) is one update. With a
`Parallelism` the processes that `shoal run` started do that together. `capture` gives the graph of a
function.
"""

import importlib

import torch

from shoal import _highs
from shoal._build import TORCH_VERSION, VERSION

# The extension uses C++ classes of PyTorch's, which differ between releases: it would crash.
if torch.__version__.split("+")[0] != TORCH_VERSION:
    raise ImportError(
        f"shoal was built for torch {TORCH_VERSION}, and this is torch {torch.__version__}. "
        f"Remedy: install torch=={TORCH_VERSION}, or build shoal again with the torch that is here: "
        "pip install --force-reinstall --no-deps --no-binary shoal shoal"
    )

from shoal._padding import PaddingCollator  # noqa: E402
from shoal._shoal import (  # noqa: E402
    BackwardResult,
    Corrupt,
    Error,
    Evaluation,
    Graph,
    Infeasible,
    Internal,
    InvalidInput,
    Parallelism,
    PeerLost,
    RowPart,
    StepResult,
    Table,
    Tables,
    Timeout,
    Trainer,
    _set_highs_library,
    capture,
    deferred_init,
    materialize,
    rank,
    replicate,
    samples_of,
    split,
    world_size,
)

_set_highs_library(_highs.library() or "")


def __getattr__(name):
    """`shoal.collectives` and the like are there without an import of their own."""
    if name in {"accelerate", "collectives", "hugging_face", "lightning", "verify"}:
        return importlib.import_module(f"shoal.{name}")
    raise AttributeError(f"module 'shoal' has no attribute '{name}'")


__version__ = VERSION
__all__ = [
    "BackwardResult",
    "Corrupt",
    "Error",
    "Evaluation",
    "Graph",
    "Infeasible",
    "Internal",
    "InvalidInput",
    "PaddingCollator",
    "Parallelism",
    "PeerLost",
    "RowPart",
    "StepResult",
    "Table",
    "Tables",
    "Timeout",
    "Trainer",
    "capture",
    "deferred_init",
    "materialize",
    "rank",
    "replicate",
    "samples_of",
    "split",
    "world_size",
]
