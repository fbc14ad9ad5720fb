# SPDX-License-Identifier: Apache-2.0
"""shoal bench comm: what it prints, what it refuses, and that it leaves no process behind."""

import csv
import io
import os
import pathlib
import select
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal"))
GOLDEN = ROOT / "tests" / "golden" / "cli" / "help_bench_comm.txt"
COLUMNS = "op,backend,ranks,bytes,median_us,algorithm_gbps,bus_gbps,bound_us,share,times"
OPS = "all_gather,all_reduce,all_to_all,barrier,broadcast,gather,reduce,reduce_scatter,scatter,send".split(
    ","
)


def bench(*arguments):
    command = [str(SHOAL), "bench", "comm", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def rows_of(result):
    assert result.returncode == 0, result.stderr
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_the_help_is_frozen():
    result = bench("--help")
    if os.environ.get("SHOAL_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == GOLDEN.read_text()


def test_a_row_for_each_size_and_backend_with_figures_that_fit_together():
    rows = rows_of(bench("--sizes=8,64K", "--compare=gloo", "--format=csv", "--repeats=3"))
    assert ",".join(rows[0]) == COLUMNS
    assert [(row["backend"], row["bytes"]) for row in rows] == [
        ("shm", "8"),
        ("gloo", "8"),
        ("shm", "65536"),
        ("gloo", "65536"),
    ]
    for row in rows:
        gbps = int(row["bytes"]) / float(row["median_us"]) * 1e-3
        assert float(row["algorithm_gbps"]) == pytest.approx(gbps, rel=0.05, abs=2e-3)
        assert row["bus_gbps"] == row["algorithm_gbps"]  # of an all-reduce between two ranks
    assert float(rows[0]["times"]) == pytest.approx(1 / float(rows[1]["times"]), rel=0.5)


def test_every_operation_is_measured_between_any_number_of_ranks():
    rows = rows_of(bench("--op=all", "-n", "3", "--sizes=1000", "--format=csv", "--repeats=2"))
    assert [row["op"] for row in rows] == OPS
    # Operations that have parts move as many elements as divide.
    assert {row["bytes"] for row in rows} == {"0", "996", "1000"}
    assert all(float(row["median_us"]) > 0 for row in rows)


def test_text_is_aligned_under_the_same_columns():
    result = bench("--sizes=8,1K", "--repeats=1", "--buffers=foreign", "--dtype=bfloat16")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == COLUMNS.split(",")
    assert [line.split()[3] for line in lines[1:]] == ["8", "1024"]
    assert len({line.rstrip().index(line.split()[4]) + len(line.split()[4]) for line in lines[1:]}) == 1


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--op=allreduce",
            "--op: there is no allreduce; there are all_gather, all_reduce, all_to_all, barrier, ",
        ),
        ("--backend=mpi", "--backend: there is no mpi; there are gloo, shm"),
        ("--compare=mpi", "--compare: there is no mpi; there are gloo, shm"),
        ("--dtype=int7", "--dtype: there is no int7; there are float64, float32, float16, bfloat16, "),
        ("--buffers=mine", "--buffers: there is no mine; there are allocated, foreign"),
        ("--format=xml", "--format: there is no xml; there are csv, text"),
        ("--sizes=8,1Q", "--sizes: 1Q is no size; write bytes from 1 to 1024G, as 8,1K,64M"),
        ("--sizes=", "--sizes: "),
        ("--ranks=0", "--ranks: wants 1 to 64, got 0"),
        ("--repeats=0", "--repeats: wants at least 1, got 0"),
    ],
)
def test_wrong_use_exits_with_2_and_names_what_is_valid(argument, message):
    result = bench(argument)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


def children_of(process):
    return [int(pid) for pid in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_there(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def long_run():
    """A command that does not end by itself; its ranks are there."""
    command = [str(SHOAL), "bench", "comm", "-n", "3", "--sizes=1M", "--repeats=1000000"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()  # the header: all ranks have met
    return process


def test_a_rank_that_dies_is_named_and_no_other_is_left():
    with long_run() as process:
        ranks = children_of(process.pid)
        assert len(ranks) == 3
        os.kill(ranks[1], signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "rank 1 was ended by signal 9" in said
        assert not any(map(is_there, ranks))


def test_ranks_end_with_the_command_however_that_ends():
    with long_run() as process:
        ranks = children_of(process.pid)
        descriptors = [os.pidfd_open(rank) for rank in ranks]
        process.kill()
        process.wait(timeout=60)
        for descriptor in descriptors:  # readable once the process has ended
            assert select.select([descriptor], [], [], 60)[0]
            os.close(descriptor)
