# SPDX-License-Identifier: Apache-2.0
"""The loop of docs/loops.md, alone and on ranks, and again from its checkpoint."""

import os
import re
import subprocess
import sys

import pytest
from built import BUILD, ROOT

LOOP = str(ROOT / "examples/loop.py")


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loop_goes_on_where_it_was(tmp_path, ranks):
    (tmp_path / "README.md").write_bytes((ROOT / "README.md").read_bytes()[:4000])
    launcher = [BUILD / "shoal", "run", "-n", str(ranks), "--limit=60"] if ranks > 1 else []
    environment = {
        **os.environ,
        "PYTHONPATH": str(BUILD / "python"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }

    def run():
        done = subprocess.run(
            [*launcher, sys.executable, LOOP],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        steps = [int(step) for step in re.findall(r"step (\d+): loss", done.stdout)]
        return steps, float(re.search(r"evaluated (\S+), writes b'", done.stdout)[1])

    steps, first = run()
    more, second = run()
    assert steps == [20] and more == [40, 60]
    assert second < first < 4
