# SPDX-License-Identifier: Apache-2.0
"""shoal data generate: what it writes and prints, and what it refuses."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal"))
GOLDEN = ROOT / "tests" / "golden" / "cli" / "help_data_generate.txt"


def generate(*arguments):
    command = [str(SHOAL), "data", "generate", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_help_is_frozen():
    result = generate("--help")
    if os.environ.get("SHOAL_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == GOLDEN.read_text()


def lines_of(folder, day):
    files = sorted(folder.glob(f"day_{day}_part_*.tsv"))
    return [line for file in files for line in file.read_text().splitlines()]


def test_days_are_the_same_lines_however_many_files_and_threads_write_them(tmp_path):
    options = ["--samples=3000", "--days=2", "--new-ids=0.2", "--largest-field=500"]
    one, three = tmp_path / "one", tmp_path / "three"
    printed = generate(one, *options)
    again = generate(three, *options, "--files=3", "--threads=2")
    assert printed.returncode == again.returncode == 0, printed.stderr + again.stderr
    assert printed.stdout == again.stdout
    assert len(list(three.iterdir())) == 6
    for day in (0, 1):
        lines = lines_of(one, day)
        assert lines == lines_of(three, day)
        assert len(lines) == 3000
        assert all(len(line.split("\t")) == 40 for line in lines)
    assert lines_of(one, 0) != lines_of(one, 1)
    days = re.findall(r"^(day 0|day 1|all days): (\d+) samples, .* oracle AUC (0\.\d+)", printed.stdout, re.M)
    assert [(name, int(count)) for name, count, _ in days] == [
        ("day 0", 3000),
        ("day 1", 3000),
        ("all days", 6000),
    ]
    assert all(0.8 < float(auc) < 0.95 for _, _, auc in days)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--samples=0", "--samples is 0, not 1 or more"),
        ("--files=0", "--files is 0, not 1 to --samples"),
        ("--gaps=2", "generated data: gaps is 2, not 0 to 1"),
    ],
)
def test_what_is_out_of_bounds_is_wrong_use(tmp_path, option, message):
    result = generate(tmp_path / "out", option)
    assert (result.returncode, result.stderr) == (2, f"shoal: {message}\n")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    result = generate(tmp_path / "file", "--samples=10")
    assert result.returncode == 1
    assert str(tmp_path / "file") in result.stderr
