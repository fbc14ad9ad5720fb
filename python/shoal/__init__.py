# SPDX-License-Identifier: Apache-2.0
"""Trains a PyTorch model through its captured graph.

    trainer = shoal.Trainer(model, torch.optim.AdamW(model.parameters(), lr=3e-4))
    for batch in loader:
        print(trainer.step(batch).loss)
"""

import torch

from shoal._build import TORCH_VERSION, VERSION

# The extension uses C++ classes of PyTorch's, which differ between releases: loading it would crash or compute nonsense.
if torch.__version__.split("+")[0] != TORCH_VERSION:
    raise ImportError(
        f"shoal was built for torch {TORCH_VERSION}, and this is torch {torch.__version__}. "
        f"Remedy: install torch=={TORCH_VERSION}, or build shoal again with the torch that is here: "
        "pip install --force-reinstall --no-deps --no-binary shoal shoal"
    )

from shoal._shoal import (  # noqa: E402
    Corrupt,
    Error,
    Evaluation,
    Graph,
    Infeasible,
    Internal,
    InvalidInput,
    PeerLost,
    StepResult,
    Timeout,
    Trainer,
    capture,
)

__version__ = VERSION
__all__ = [
    "Corrupt",
    "Error",
    "Evaluation",
    "Graph",
    "Infeasible",
    "Internal",
    "InvalidInput",
    "PeerLost",
    "StepResult",
    "Timeout",
    "Trainer",
    "capture",
]
