# SPDX-License-Identifier: Apache-2.0
"""The published GAN: alone, on ranks that keep both models in parts, and ended between its two saves."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from built import BUILD, ROOT

GAN = [sys.executable, str(ROOT / "examples/gan.py"), "12"]
ON_RANKS = [BUILD / "shoal", "run", "-n", "2", "--limit=60", *GAN]
NAMES = ("generator", "discriminator")


def run(command, folder):
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    losses = re.findall(r"discriminator (\S+), generator (\S+)", result.stdout)
    return [float(loss) for pair in losses for loss in pair]


def weights(folder):
    return [(folder / f"outputs/gan/{name}/step_00000012/model-0.safetensors").read_bytes() for name in NAMES]


def test_ranks_learn_what_one_device_does_and_go_on_where_both_models_were(tmp_path):
    alone = run(GAN, tmp_path)
    assert len(alone) == 12
    shutil.rmtree(tmp_path / "outputs")
    assert run(ON_RANKS, tmp_path) == pytest.approx(alone, abs=2e-3)
    whole = weights(tmp_path)
    for earlier in NAMES:
        shutil.rmtree(tmp_path / f"outputs/gan/{earlier}/step_00000012")  # it ended before that one was saved
        run(ON_RANKS, tmp_path)
        assert weights(tmp_path) == whole
