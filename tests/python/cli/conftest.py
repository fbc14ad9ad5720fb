# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal"))

# A recipe that trains in a second, on a text of its own.
TINY = """
[job]
dump_folder = "{folder}/out"

[model]
name = "gpt2"
vocab_size = 300
n_positions = 16
n_embd = 16
n_layer = 1
n_head = 2
embd_pdrop = 0.1

[dataset]
path = "{folder}/text.txt"
held_out_bytes = 400

[training]
local_batch_size = 2
seq_len = 16
steps = 4

[metrics]
log_freq = 2

[validation]
freq = 2
steps = 1

[sample]
tokens = 5
"""


@pytest.fixture(scope="session")
def shoal():
    """shoal("train", recipe, …) -> the completed process; text, both streams captured."""
    assert SHOAL.exists(), f"{SHOAL} is not built: run make first"

    def call(*arguments, **options):
        command = [str(SHOAL), *(str(word) for word in arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, **options)

    call.path = SHOAL
    return call


@pytest.fixture
def tiny(tmp_path):
    """A tiny recipe's path; its text lies beside it, its results go to `out` there."""
    words = "the quick brown fox jumps over the lazy dog and runs away\n"
    (tmp_path / "text.txt").write_text(words * 60)
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY.format(folder=tmp_path))
    return recipe
