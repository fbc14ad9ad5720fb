# SPDX-License-Identifier: Apache-2.0
import os
import re
import shutil
import subprocess
import sys

from built import BUILD, ROOT


def test_the_readmes_python_runs_as_printed(tmp_path):
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 15
    shutil.copy(ROOT / "README.md", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(BUILD / "python")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(re.fullmatch(r"loss (\S+)\n", done.stdout)[1]) < 4
    assert (tmp_path / "outputs/gpt2-bytes/model.safetensors").exists()
