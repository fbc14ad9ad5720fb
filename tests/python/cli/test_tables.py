# SPDX-License-Identifier: Apache-2.0
"""Recipes whose rows are in tables: on servers, on several ranks, and what goes wrong there."""

import json
import os
import re
import shutil

import pytest
from small import SMALL, losses_in

RECIPES = ["deepfm", "wide_deep", "dcn", "dlrm_clicks", "word2vec"]
DRAWN = [("deepfm", 4, 2), ("wide_deep", 2, 3), ("dcn", 1, 3), ("dlrm_clicks", 2, 2), ("word2vec", 4, 1)]
WHOLE = [(recipe, servers, ranks) for recipe in RECIPES for servers in (1, 2, 4) for ranks in (1, 2, 3)]


@pytest.fixture(scope="module")
def errors():
    found = []
    yield found
    if found:
        print(f"seen: {len(found)} recipes on servers and ranks, largest error {max(found):.1e}")


# All of them: tools/prove.py tables.
@pytest.mark.parametrize(
    ("recipe", "servers", "ranks"), WHOLE if os.environ.get("SHOAL_WHOLE_MATRIX") else DRAWN
)
def test_ranks_and_servers_have_the_rows_of_one_device(shoal, errors, recipe, servers, ranks):
    result = shoal(
        "verify", f"recipes/{recipe}.toml", "-n", ranks, f"--ps.servers={servers}", "--verify.steps=2"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    error = float(re.search(r"largest error: (\S+), allowed", result.stdout)[1])
    assert error < 1e-9
    assert servers == 1 or "have the rows of one loop, bit for bit" in result.stdout
    errors.append(error)


def test_micro_batches_and_zero_have_them_too(shoal):
    result = shoal(
        "verify",
        "recipes/deepfm.toml",
        *["-n", 2, "--ps.servers=2", "--ps.threads=2", "--verify.steps=2"],
        *["--parallelism.data_parallel_shard_degree=2", "--training.local_batch_size=2"],
        "--training.global_batch_size=8",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 x 4 samples" in result.stdout


def test_what_is_multiplied_lies_on_servers_too(shoal):
    result = shoal(
        "verify",
        "recipes/deepfm.toml",
        *["-n", 3, "--ps.servers=2", "--verify.steps=2", "--tables.0.parameters=deep.*.weight"],
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "have the rows of one loop, bit for bit" in result.stdout


# Adam moves rows that a batch does not have where all are in memory: one device has tables too then.
def test_other_row_optimizers_and_bfloat16(shoal):
    for options in (["--tables.0.optimizer=adam"], ["--tables.0.optimizer=ftrl", "--tables.0.l1=0.01"]):
        result = shoal(
            "verify", "recipes/deepfm.toml", "-n", 2, "--ps.servers=2", "--verify.steps=2", *options
        )
        assert result.returncode == 0, result.stdout + result.stderr


# With more rows than memory: shoal/ps/cold_servers_test.cpp.
def test_memory_of_tables_changes_no_bit_and_halves_on_the_wire_change_little(shoal, tmp_path):
    losses = {}
    for name, options in (
        ("plain", []),
        ("bounded", ["--ps.memory=128MiB"]),
        ("halves", ["--ps.wire_dtype=bfloat16"]),
    ):
        folder = tmp_path / name
        result = shoal(
            "train",
            "recipes/deepfm.toml",
            *SMALL,
            "-n",
            2,
            "--ps.servers=2",
            *options,
            f"--job.dump_folder={folder}",
        )
        assert result.returncode == 0, result.stderr
        losses[name] = losses_in(folder)
    assert losses["bounded"] == losses["plain"]
    assert losses["halves"] != losses["plain"]
    assert losses["halves"] == pytest.approx(losses["plain"], abs=2e-3)
    little = shoal(
        "train", "recipes/deepfm.toml", *SMALL, "--ps.memory=1MiB", f"--job.dump_folder={tmp_path}"
    )
    assert little.returncode == 1
    assert 'table "rows.weight": 1.0MiB of memory are less than the' in little.stderr


def test_a_run_on_servers_is_that_of_one_process(shoal, tmp_path):
    wanted = None
    served = ["-n", 2, "--ps.servers=2"]
    for name, options in (("alone", []), ("ahead", [*served, "--ps.prefetch=true"]), ("served", served)):
        folder = tmp_path / name
        result = shoal(
            "train",
            "recipes/deepfm.toml",
            *SMALL,
            "--training.dtype=float64",
            f"--job.dump_folder={folder}",
            *options,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        losses = losses_in(folder)
        assert len(losses) == 14
        wanted = wanted or losses
        assert losses == pytest.approx(wanted, rel=1e-9)
    assert losses_in(tmp_path / "ahead") == losses  # bit for bit
    assert "[0] model:   deepfm, 56,257 parameters, 1 table on 2 servers" in result.stdout
    results = json.loads((tmp_path / "served" / "results.json").read_text())
    assert results["measures"]["AUC"]["baseline_name"] == "the oracle"


@pytest.mark.parametrize("mode", ["async", "half_async", "geo"])
def test_ranks_that_do_not_wait_for_each_other_learn_as_well(shoal, tmp_path, mode):
    options = ["--training.steps=300", "--ps.geo_steps=7", f"--job.dump_folder={tmp_path}"]
    options += ["--dataset.samples=20000", "--validation.freq=100"]
    result = shoal(
        "train", "recipes/deepfm.toml", *SMALL, *options, "-n", 2, "--ps.servers=2", f"--ps.mode={mode}"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    losses = losses_in(tmp_path)
    assert sum(losses[-100:]) < 0.98 * sum(losses[:100])  # 0.95, but for who comes first
    results = json.loads((tmp_path / "results.json").read_text())
    assert results.get("stalest_row_steps", 4) == 4  # what is allowed, and is made use of
    assert ("stalest_row_steps" in results) == (mode == "half_async")


def check_verbs(shoal, saved, folder, deltas):
    inspected = shoal("ps", "inspect", saved)
    assert inspected.returncode == 0, inspected.stderr
    number = int(re.search(r"^rows (\d+), digest [0-9a-f]{16}", inspected.stdout, re.M)[1])
    assert number > 100 and f" in {2 + 2 * deltas} files, " in inspected.stdout
    lines = shoal("ps", "dump", saved).stdout.splitlines()
    assert len(lines) == 1 + number and lines[0].startswith("key,part0.0,part0.1")
    keys = [int(line.split(",")[0]) for line in lines[1:]]
    assert keys == sorted(set(keys))
    exported = shoal("ps", "export", saved, folder / "served")
    assert exported.returncode == 0, exported.stderr
    assert shoal("ps", "dump", folder / "served").stdout.splitlines() == lines  # values alone
    files = [saved.with_name(f"{saved.name}.{part}") for part in (0, 1)]
    assert deltas or (folder / "served.0").stat().st_size < 0.7 * sum(file.stat().st_size for file in files)
    refused = shoal("ps", "export", saved, folder / "served", "--min-score=0.5")
    assert "a base by score wants scored = true" in refused.stderr
    itself = shoal("ps", "export", saved, saved.parent / "." / saved.name)
    assert itself.returncode != 0 and "is the save itself" in itself.stderr
    assert "nothing was saved there" in shoal("ps", "inspect", folder / "none").stderr


# Saved at steps 4, 8 and 12 by two servers; 8 is gone on from by three, and by one process.
@pytest.mark.parametrize("deltas", [0, 2])
def test_rows_are_in_checkpoints_and_go_on_elsewhere(shoal, tmp_path, deltas):
    saves = ["--checkpoint.enable=true", "--checkpoint.interval=4", "--training.dtype=float64"]
    saves += [f"--ps.save_deltas={deltas}"]
    served = ["-n", 2, "--ps.servers=2"]

    def train(name, *options):
        folder = f"--job.dump_folder={tmp_path / name}"
        return shoal("train", "recipes/deepfm.toml", *SMALL, *saves, folder, *options)

    result = train("whole", *served)
    assert result.returncode == 0, result.stdout + result.stderr
    wanted = losses_in(tmp_path / "whole")
    rows = tmp_path / "whole" / "checkpoint" / "rows"
    assert sorted(p.name for p in rows.iterdir()) == [f"step_{step:08}" for step in (4, 8, 12)]
    follows = [(rows / f"step_{step:08}" / "follows") for step in (4, 8, 12)]
    assert [path.read_text() if path.exists() else "" for path in follows] == (
        ["", "step_00000004", "step_00000008"] if deltas else ["", "", ""]
    )
    for name, options in (("more", ["-n", 2, "--ps.servers=3"]), ("alone", [])):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        result = train(name, *options, "--checkpoint.load_step=8")
        assert result.returncode == 0, result.stdout + result.stderr
        assert "resume:  step 8 from " in result.stdout
        assert losses_in(tmp_path / name)[-5:] == pytest.approx(wanted[-5:], rel=1e-9)
    check_verbs(shoal, rows / "step_00000012" / "rows.weight", tmp_path, deltas)
    (rows / "step_00000012" / "rows.weight.1").unlink()
    result = train("whole", *served, "--training.steps=14")
    assert result.returncode == 1
    assert "rows.weight.0: one of 2 files of its save, and 1 were given" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-n", 2], "2 ranks share the rows of [[tables]], which servers have, and ps.servers is 0"),
        (["--tables.0.parameters=row.weight"], 'tables: no parameter of deepfm is called "row.weight"'),
        (
            ["--tables.0.optimiser=adam"],
            "there is no key tables.0.optimiser; did you mean tables.0.optimizer?",
        ),
        (["--tables.0.optimizer=adamw"], 'tables.0.optimizer: there is no "adamw"; did you mean "adam"?'),
        (["--tables.lr=1"], "tables.lr: this is a list: a file has [[tables]], with two brackets, and an"),
        (["--tables.1.lr=1"], "tables.1.parameters is not said"),
        (
            ["--training.max_norm=1"],
            "training.max_norm is 1, and the norm of all gradients would lack those of rows",
        ),
        (["--ps.mode=halfasync"], 'ps.mode: there is no "halfasync"; did you mean "half_async"?'),
        (["--ps.prefetch=true", "--ps.mode=geo"], "ps.prefetch is true, and ps.mode is geo"),
        (["--ps.prefetch=true", "--ps.cache_rows=0"], "ps.prefetch is true, and ps.cache_rows is 0"),
        (["--ps.memory=lots"], 'ps.memory is "lots"; it is a number above 0 with a unit'),
        (["--ps.memory=0GiB"], 'ps.memory is "0GiB"; it is a number above 0 with a unit'),
        (["--ps.cold_folder=cold"], 'ps.cold_folder is "cold", and ps.memory bounds nothing'),
        (["--ps.wire_dtype=bfloat16"], "and tables are in this process: there is no wire"),
        (["--model.fields=3"], "a sample of clicks has 26 ids and 13 numbers; model.fields is 3"),
    ],
)
def test_what_cannot_be_is_wrong_use(shoal, options, message):
    result = shoal("train", "recipes/deepfm.toml", *options)
    assert result.returncode == 2
    assert message in result.stderr


def test_only_a_mode_whose_runs_are_alike_is_verified(shoal):
    result = shoal("verify", "recipes/deepfm.toml", "-n", 2, "--ps.servers=1", "--ps.mode=geo")
    assert result.returncode == 1
    assert "verify: ps.mode is geo, whose ranks do not wait for each other's rows" in result.stderr
