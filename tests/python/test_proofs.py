# SPDX-License-Identifier: Apache-2.0
"""The short form of each proof holds, and the page lists all proofs as they are."""

import importlib.util
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("prove", ROOT / "tools" / "prove.py")
prove = importlib.util.module_from_spec(SPEC)
sys.modules["prove"] = prove
SPEC.loader.exec_module(prove)

# These are tests of this suite, or of ctest, themselves.
TESTS = {"kills", "hosts", "matrix", "recompute"}


@pytest.mark.parametrize("name", sorted(set(prove.PROOFS) - TESTS))
def test_the_short_form_holds(run, name):
    if os.geteuid() != 0:
        pytest.skip("proofs beside other tests need namespaces of their own, and those need root")
    result = run(sys.executable, "tools/prove.py", "--short", name)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].startswith(f"prove: {name} holds, ")


def test_a_proof_that_does_not_hold_ends_with_1(run, tmp_path):
    broken = tmp_path / "shoal"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    result = run(
        sys.executable, "tools/prove.py", "--short", "start", env=os.environ | {"SHOAL_COMMAND": str(broken)}
    )
    assert result.returncode == 1
    assert "prove: start FAILED" in result.stdout


def test_a_name_that_is_not_there_is_refused(run):
    result = run(sys.executable, "tools/prove.py", "faultz")
    assert result.returncode == 1
    assert result.stderr.startswith("prove: there is no 'faultz'; there are bare, ")


def test_the_page_lists_every_proof():
    page = prove.PAGE.read_text()
    found = prove.results()
    assert list(found) == list(prove.PROOFS)
    for name, proof in prove.PROOFS.items():
        assert prove.row(name, found[name]) in page
        assert (ROOT / proof.page).exists()
