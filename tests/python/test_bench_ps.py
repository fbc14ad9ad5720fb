# SPDX-License-Identifier: Apache-2.0
"""shoal bench ps: what it prints, and what it refuses."""

import csv
import io
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal"))
GOLDEN = ROOT / "tests" / "golden" / "cli" / "help_bench_ps.txt"
COLUMNS = "op,transport,rows,dim,batch,rows_per_second_per_core,p99_us,index_bytes_per_key,bytes_per_row"


def bench(*arguments):
    command = [str(SHOAL), "bench", "ps", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_help_is_frozen():
    result = bench("--help")
    if os.environ.get("SHOAL_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == GOLDEN.read_text()


def test_csv_has_a_line_for_each_operation_and_transport():
    arguments = [
        "--transport=memory,tcp,shm",
        "--rows=20K",
        "--dim=8",
        "--batch=1000",
        "--repeats=1",
        "--format=csv",
    ]
    result = bench(*arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == COLUMNS
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    wanted = [("pull", "memory"), ("push", "memory")]
    wanted += [(op, transport) for transport in ("tcp", "shm") for op in ("pull", "push")]
    assert [(row["op"], row["transport"]) for row in rows] == wanted
    for row in rows:
        assert (row["rows"], row["dim"], row["batch"], row["bytes_per_row"]) == ("20000", "8", "1000", "64")
        assert float(row["rows_per_second_per_core"]) > 1000
        assert float(row["p99_us"]) > 0
        if row["transport"] == "memory":
            assert 8 < float(row["index_bytes_per_key"]) < 40


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--op=peek", '--op has "peek"; it takes pull and push'),
        ("--transport=pigeon", '--transport has "pigeon"; it takes memory, tcp and shm'),
        ("--rows=10X", '--rows is "10X"; it takes 1 to 2G'),
        ("--rows=0", '--rows is "0"; it takes 1 to 2G'),
        ("--rows=3G", '--rows is "3G"; it takes 1 to 2G'),
        ("--dim=0", "--dim is 0, not 1 to 4096"),
        ("--batch=0", "--batch is 0, not 1 to 1048576"),
    ],
)
def test_what_cannot_be_measured_is_wrong_use(option, message):
    result = bench(option)
    assert result.returncode == 2
    assert result.stderr.startswith(f"shoal: {message}")
