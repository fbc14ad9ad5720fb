# SPDX-License-Identifier: Apache-2.0
"""Tables of a job that runs: their days, and what is asked of them from outside."""

import re
import signal
import subprocess

from processes import line_of
from small import SMALL

EXPIRES = ["--tables.0.scored=true", "--tables.0.decay=0.5", "--tables.0.max_unseen_days=1"]


def test_days_end_between_steps_and_ranks_have_the_rows_of_one_device(shoal, tmp_path):
    days = [*EXPIRES, "--ps.day_steps=2"]
    result = shoal("verify", "recipes/deepfm.toml", "-n", 2, "--ps.servers=2", "--verify.steps=6", *days)
    assert result.returncode == 0, result.stdout + result.stderr
    command = ["train", "recipes/deepfm.toml", *SMALL, "--training.steps=8", *days]
    alone = shoal(*command, f"--job.dump_folder={tmp_path / 'alone'}")
    two = shoal(*command, "-n", 2, "--ps.servers=2", f"--job.dump_folder={tmp_path / 'two'}")
    said = [re.findall(r"day \d  rows.weight: (\d+) of (\d+) rows went", run.stdout) for run in (alone, two)]
    assert said[0] == said[1] and len(said[0]) == 4 and int(said[0][3][0]) > 0, alone.stdout + two.stdout
    none = shoal("train", "recipes/deepfm.toml", "--ps.day_steps=2")
    assert none.returncode == 2 and "no table has scores: nothing expires" in none.stderr


def test_slots_have_days_of_their_own(shoal, tmp_path):
    days = [*EXPIRES[:2], "--tables.0.max_unseen_days=0", "--ps.day_steps=2", "--training.steps=8"]

    def went(*options):
        run = shoal("train", "recipes/deepfm.toml", *SMALL, *days, *options, f"--job.dump_folder={tmp_path}")
        assert run.returncode == 0, run.stderr
        return [int(rows) for rows in re.findall(r"day \d  rows.weight: (\d+) of \d+ rows went", run.stdout)]

    every = " ".join(f"{slot}:1" for slot in range(26))
    some, all_of_them = went("--tables.0.slot_days=0:1 25:1"), went(f"--tables.0.slot_days={every}")
    assert went() == [0, 0, 0, 0]
    assert 0 < some[3] < all_of_them[3] == went("--tables.0.max_unseen_days=1")[3]
    for said, message in (
        ("three", 'tables.0.slot_days is "three"; it is slot:days, each slot once, with spaces between them'),
        ("1024:3", "life.slot_days is 1024:3, wanted slots below 1024: slot_bits is 10"),
    ):
        run = shoal("train", "recipes/deepfm.toml", *SMALL, *days, f"--tables.0.slot_days={said}")
        assert run.returncode != 0 and message in run.stderr, run.stderr


def test_a_job_that_runs_is_looked_at_saved_and_shrunk(shoal, tmp_path):
    folder = tmp_path / "job"
    command = [shoal.path, "train", "recipes/deepfm.toml", *SMALL, *EXPIRES, "-n", "2", "--ps.servers=2"]
    command += ["--training.steps=100000", "--validation.freq=100000", f"--job.dump_folder={folder}"]

    def ps(verb, *options):
        result = shoal("ps", verb, folder, *options)
        return result.returncode, result.stdout + result.stderr

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            while "step:" not in line_of(run):
                pass
            code, said = ps("top", "--times=2", "--every=0.3")
            looks = re.findall(r"^(server \d|rows.weight) +(.*)$", said, re.MULTILINE)
            assert code == 0 and [who for who, _ in looks] == ["server 0", "server 1", "rows.weight"] * 2, (
                said
            )
            assert "-" in looks[2][1] and "-" not in looks[5][1], said  # there is no rate at the first look
            code, said = ps("save", tmp_path / "tables")
            assert code == 0 and re.search(r"rows.weight: [1-9]\d* rows", said), said
            code, said = ps("shrink", "--day=9")
            assert code == 0 and re.search(r"day 9  rows.weight: [1-9]\d* of \d+ rows went", said), said
            code, said = ps("shrink", "--table=row.weight")
            assert code == 1 and 'there is no table "row.weight"; there are rows.weight' in said, said
            code, said = ps("save", tmp_path / "serve", "--for-serving", "--min-score=0.2")
            assert code == 0, said
            assert ps("save", tmp_path / "serve", "--min-score=0.2")[0] == 2
        finally:
            run.send_signal(signal.SIGTERM)
            run.communicate(timeout=60)
    saved = shoal("ps", "inspect", tmp_path / "tables" / "rows.weight")
    assert saved.returncode == 0 and re.search(r"rows [1-9]\d*, digest", saved.stdout), saved.stderr
    assert (tmp_path / "serve" / "rows.weight.1").exists()


def test_what_rows_take_is_said_before_there_are_any(shoal):
    result = shoal("ps", "size", "--rows=2G", "--width=16", "--server-memory=64GiB")
    assert result.returncode == 0
    assert "a row: 128 bytes with its state, and at most 24 of index" in result.stdout
    assert "2G rows: 283.1GiB, on two servers each: 566.2GiB" in result.stdout
    assert "servers of 64GiB: 12," in result.stdout
    for option, message in (
        ("--rows=2X", '--rows is "2X"'),
        ("--optimizer=sdg", '--optimizer is "sdg"; it is sgd, momentum'),
        ("--width=0", "width"),
        ("--server-memory=64", '--server-memory is "64"; it is a number and a unit'),
    ):
        wrong = shoal("ps", "size", option)
        assert wrong.returncode == 2 and message in wrong.stderr, wrong.stderr
