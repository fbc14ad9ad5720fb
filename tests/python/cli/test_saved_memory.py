# SPDX-License-Identifier: Apache-2.0
"""Recompute and offload beside every way to train: in float64 the result is that of one device."""

import os
import random
import re

import pytest
from cli import test_memory

# What is made again, by path.
MODULES = {
    "bert": "bert.encoder.layer.0",
    "dlrm": "top_l",
    "gpt": "transformer.h.*.mlp",
    "llama": "model.layers.*.self_attn",
    "lstm": "decoder",
    "mlp": "layers",
    "resnet": "layer2.* layer3.0",
    "t5": "encoder.block.*",
    "vit": "vit.encoder.layer.1",
}
LAYOUTS = [*test_memory.BENCH.STRATEGIES, "pipeline"]
HOW = {
    "full": ["--recompute.mode=full"],
    "path": ["--recompute.mode=full", "--recompute.modules={modules}"],
    "auto 0.95": 0.95,
    "auto half": 0.5,
    "auto least": 0.0,
    "offload": test_memory.OFFLOAD,
}
CELLS = [
    (recipe, layout, how)
    for recipe in MODULES
    for layout in LAYOUTS
    for how in HOW
    if (recipe, how) != ("lstm", "full")  # of numbered blocks, and it has none: refused by name
]


def drawn():
    """Each recipe, each layout and each way of saving once at least."""
    cells = random.Random(4).sample(CELLS, len(CELLS))
    left = {*MODULES, *LAYOUTS, *HOW}
    chosen = []
    for cell in cells:
        if left & set(cell):
            chosen.append(cell)
            left -= set(cell)
    return chosen


def verify(shoal, of, share):
    """With so much of the activations that there are without recompute, or the least that is said."""
    plain = shoal("plan", *of)
    assert plain.returncode == 0, plain.stderr
    number, unit = re.search(r"it takes most: .* activations ([\d.]+)(B|KiB|MiB)", plain.stdout).groups()
    budget = 1 + int(share * float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit])
    for _ in range(4):  # each rank, each stage has a least of its own
        result = shoal("verify", *of, "--recompute.mode=auto", f"--recompute.bytes={budget}B")
        least = re.search(r"the least that they take is (\d+) bytes", result.stderr)
        if not least:
            break
        assert int(least[1]) > budget
        budget = int(least[1])
    return result


@pytest.fixture(scope="module")
def errors():
    """The largest error of each cell; told together, as proofs want it."""
    found = []
    yield found
    if found:
        print(f"\nseen: {len(found)} ways to train, largest error {max(found):.1e}")


# All of them: tools/prove.py recompute.
@pytest.mark.parametrize(
    ("recipe", "layout", "how"), CELLS if os.environ.get("SHOAL_WHOLE_MATRIX") else drawn()
)
def test_ranks_that_save_memory_have_the_result_of_one_device(
    shoal, monkeypatch, errors, recipe, layout, how
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    of = [f"recipes/{recipe}.toml", *test_memory.SMALL[recipe].split(), "--training.dtype=float64"]
    if layout == "pipeline":
        of += ["-n", "2", "--parallelism.pipeline_parallel_degree=2"]
    else:
        of += test_memory.BENCH.words_of(recipe, layout) or ["-n", "1"]
    of.append("--verify.steps=2")
    if isinstance(HOW[how], float):
        result = verify(shoal, of, HOW[how])
    else:
        result = shoal("verify", *of, *(word.format(modules=MODULES[recipe]) for word in HOW[how]))
    assert result.returncode == 0, result.stdout + result.stderr
    error = float(re.search(r"largest error: (\S+), allowed", result.stdout)[1])
    assert error < 1e-9
    errors.append(error)
