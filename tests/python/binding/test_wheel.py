# SPDX-License-Identifier: Apache-2.0
"""`pip install .`: a wheel is built, installed where there is nothing but PyTorch, and trains."""

import subprocess
import sys
import zipfile

import pytest
import torch
from built import BUILD, ROOT

TRAIN = """
import pathlib, shoal, torch
assert "site-packages" in shoal.__file__, shoal.__file__
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = shoal.Trainer(model, optimizer, lambda model, x: (model(x)[:, 0] - x.sum(1)).square().mean())
batch = torch.randn(32, 4)
losses = [trainer.step(batch).loss for _ in range(50)]
assert losses[-1] < 0.1 * losses[0], losses
print("trained")
"""


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=900, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The environment's python. The wheel is built in the tests' build directory: nothing compiles twice."""
    folder = tmp_path_factory.mktemp("wheel")
    cache = (BUILD / "CMakeCache.txt").read_text()
    build_type = next(
        line.split("=")[1] for line in cache.splitlines() if line.startswith("CMAKE_BUILD_TYPE:")
    )
    options = ["-C", f"build-dir={BUILD}", "-C", f"cmake.build-type={build_type}"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, *options, ROOT)
    [wheel] = folder.glob("shoal-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "shoal/bin/shoal" in names and "shoal/__init__.pyi" in names and "shoal/py.typed" in names, names
    run(sys.executable, "-m", "venv", "--without-pip", folder / "environment")
    python = folder / "environment/bin/python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    # PyTorch is not copied: the path of the one that is here is added to the new environment's.
    site = run(python, "-c", "import site; print(site.getsitepackages()[0])").strip()
    there = torch.__path__[0].removesuffix("/torch")
    (folder / "torch").mkdir()
    names = "torch torchgen typing_extensions.py numpy numpy.libs sympy mpmath networkx jinja2 markupsafe"
    for name in [*names.split(), "filelock", "fsspec"]:
        (folder / "torch" / name).symlink_to(f"{there}/{name}")
    with open(f"{site}/torch.pth", "w") as path:
        path.write(str(folder / "torch"))
    return python


def test_the_wheel_trains_where_nothing_but_pytorch_is(environment, tmp_path):
    assert run(environment, "-c", TRAIN, cwd=tmp_path) == "trained\n"


def test_the_wheel_brings_the_command(environment, tmp_path):
    text = run(environment.parent / "shoal", "--help", cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert "shoal train" in text or "train" in text
