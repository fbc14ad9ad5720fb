# SPDX-License-Identifier: Apache-2.0
"""Runs of recipes/deepfm.toml that take a second, and what they say."""

import json

SMALL = [
    "--dataset.samples=4000",
    "--dataset.held_out=512",
    "--training.local_batch_size=64",
    "--training.global_batch_size=64",
    "--training.steps=12",
    "--validation.freq=6",
]


def losses_in(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [value for line in lines for key, value in line.items() if key in {"loss", "validation_auc"}]
