# SPDX-License-Identifier: Apache-2.0
"""What makes a run of recipes/deepfm.toml take a second."""

SMALL = [
    "--dataset.samples=4000",
    "--dataset.held_out=512",
    "--training.local_batch_size=64",
    "--training.global_batch_size=64",
    "--training.steps=12",
    "--validation.freq=6",
]
