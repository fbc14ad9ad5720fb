import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def run():
    """run("tools/check_layers.py", folder) -> the completed process; text, both streams captured."""

    def call(*command, **options):
        command = [str(word) for word in command]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, **options)

    return call
