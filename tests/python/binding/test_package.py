# SPDX-License-Identifier: Apache-2.0
"""What lies in the package beside its extension."""

import os
import subprocess
import sys

import pytest
from built import BUILD

import shoal


def python(*words):
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python")}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["accelerate", "collectives", "hugging_face", "lightning", "verify"])
def test_parts_are_there_without_an_import_of_their_own(name):
    assert python("-c", f"import shoal; print(shoal.{name}.__name__)") == f"shoal.{name}\n"


def test_what_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'shoal' has no attribute 'trainer'"):
        shoal.trainer  # noqa: B018


def test_the_module_is_the_command():
    assert python("-m", "shoal", "--version").startswith("shoal ")
