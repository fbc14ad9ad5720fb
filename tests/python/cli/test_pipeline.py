# SPDX-License-Identifier: Apache-2.0
"""`shoal train` and `shoal plan` of a model in stages."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from processes import rank_of, running
from test_ranks import lines_until

STAGES = ["-n", 2, "--parallelism.pipeline_parallel_degree=2"]
BATCH = ["--training.local_batch_size=2", "--training.global_batch_size=4", "--model.n_layer=3"]


@pytest.fixture
def losses(shoal, tiny):
    def call(name, *options):
        folder = tiny.parent / name
        double = ["--training.dtype=float64", "--sample.tokens=0"]
        result = shoal("train", tiny, f"--job.dump_folder={folder}", *double, *BATCH, *options)
        assert result.returncode == 0, result.stdout + result.stderr
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [value for line in lines for key, value in line.items() if key in {"loss", "validation_loss"}]

    return call


def test_stages_have_the_losses_of_one_device_and_go_on_from_each_others_checkpoints(losses):
    wanted = losses("alone")
    assert losses("two", *STAGES) == pytest.approx(wanted, rel=1e-9)
    three = ["-n", 3, "--parallelism.pipeline_parallel_degree=-1"]
    assert losses("three", *three, "--parallelism.pipeline_parallel_schedule=gpipe") == pytest.approx(
        wanted, rel=1e-9
    )
    for schedule in ("looped_bfs", "interleaved_1f1b", "zb_h1", "zb_h2", "zbv", "dualpipev"):
        several = [*STAGES, f"--parallelism.pipeline_parallel_schedule={schedule}"]
        assert losses(schedule, *several) == pytest.approx(wanted, rel=1e-9)
    sharded = ["-n", 4, STAGES[2], "--parallelism.data_parallel_shard_degree=-1"]
    save = "--checkpoint.enable=true"
    losses("out", *sharded, "--training.local_batch_size=1", save, "--training.steps=2")
    assert losses("out", save)[-3:] == pytest.approx(wanted[-3:], rel=1e-9)
    losses("back", save, "--training.steps=2")
    assert losses("back", *STAGES, save)[-3:] == pytest.approx(wanted[-3:], rel=1e-9)


def test_a_file_is_the_schedule(shoal, losses, tiny):
    wanted = losses("alone")
    file = tiny.parent / "mine.csv"
    made = shoal("simulate", "--schedule=zbv", "--stages=4", "--microbatches=4", f"--save={file}")
    assert made.returncode == 0, made.stderr
    # One weight gradient later, and a stage more on the first rank.
    rows = file.read_text().splitlines()
    assert rows[0].count("0W0,") == 1
    rows[0] = rows[0].replace("0W0,", "", 1).replace("0W1,", "0W0,0W1,", 1)
    file.write_text("\n".join(rows) + "\n")
    mine = f"--parallelism.pipeline_parallel_schedule={file}"
    assert losses("file", *STAGES, mine) == pytest.approx(wanted, rel=1e-9)
    played = shoal("plan", tiny, *STAGES, *BATCH, mine)
    assert played.returncode == 0, played.stderr
    assert re.findall(r"^stage (\d) on rank (\d): ", played.stdout, re.M) == [
        ("0", "0"),
        ("1", "1"),
        ("2", "1"),
        ("3", "0"),
    ]
    more = shoal("train", tiny, *STAGES, mine, "--parallelism.pipeline_parallel_microbatches=8")
    assert more.returncode == 2
    assert more.stderr.endswith("mine.csv: it has no 8 micro-batches; 4 is the nearest that it can run\n")
    three = shoal("train", tiny, "-n", 3, "--parallelism.pipeline_parallel_degree=3", mine)
    assert three.returncode == 2
    assert "it has 2 rows, one a rank, and axis 'pipeline' has 3 ranks" in three.stderr


def test_a_plan_names_stages_and_what_crosses(shoal, tiny):
    plan = tiny.parent / "stages.plan"
    plan.write_text(
        "mesh pipeline=2\npipeline pipeline schedule=gpipe microbatches=4\nstage transformer.h.1\n"
    )
    result = shoal(
        "plan", tiny, "-n", 2, f"--plan={plan}", "--model.n_layer=3", "--training.local_batch_size=8"
    )
    assert result.returncode == 0, result.stderr
    assert "stage 0: from the beginning, " in result.stdout
    assert re.search(
        r"^stage 1: from transformer\.h\.1, [\d.]+ % of the work, [\d,]+ parameters", result.stdout, re.M
    )
    assert "stages share 4,800 parameters, whose gradients are summed up" in result.stdout
    assert re.search(r"^  stages +forward +send x1 +pipeline", result.stdout, re.M)
    assert "collectives of each of 4 micro-batches of a step" in result.stdout


def test_a_plan_says_which_rank_has_which_stages(shoal, tiny):
    options = ["--model.n_layer=3", "--parallelism.pipeline_parallel_schedule=interleaved_1f1b"]
    result = shoal("plan", tiny, *STAGES, *options)
    assert result.returncode == 0, result.stderr
    found = re.findall(r"^stage (\d) on rank (\d): from ", result.stdout, re.M)
    assert found == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")]
    result = shoal("plan", tiny, *STAGES, *options, "--parallelism.pipeline_parallel_stages_per_rank=3")
    found = re.findall(r"^stage (\d) on rank (\d): from ", result.stdout, re.M)
    assert found == [(str(stage), str(stage % 2)) for stage in range(6)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--parallelism.pipeline_parallel_schedule=1f2b"], "1f2b"),
        (
            ["--parallelism.pipeline_parallel_stages_per_rank=3"],
            "1f1b: 3 stages a rank; it has 1",
        ),
        (["--parallelism.pipeline_parallel_microbatches=3"], "cannot be cut into 3 micro-batches"),
        (["--parallelism.tensor_parallel_degree=2"], "degrees pipeline 2 x replicate"),
    ],
)
def test_what_no_pipeline_can_run_is_told_before_it_starts(shoal, tiny, options, message):
    result = shoal("train", tiny, *STAGES, *options)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr


def test_a_stage_that_begins_nowhere_is_told(shoal, tiny):
    plan = tiny.parent / "stages.plan"
    plan.write_text("mesh pipeline=2\nstage transformer.k.1\n")
    result = shoal("plan", tiny, "-n", 2, f"--plan={plan}")
    assert result.returncode != 0
    assert "a stage is to begin at 'transformer.k.1'" in result.stderr
    assert "did you mean 'transformer" in result.stderr


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b", "zb_h2", "zbv"])
@pytest.mark.parametrize("mode", ["full", "auto --recompute.bytes=225KiB"])
def test_stages_recompute(shoal, tiny, mode, schedule):
    options = [*f"--recompute.mode={mode}".split(), f"--parallelism.pipeline_parallel_schedule={schedule}"]
    result = shoal(
        "verify", tiny, "-n", 4, STAGES[2], *BATCH, "--parallelism.data_parallel_shard_degree=2", *options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "allowed 1e-09" in result.stdout


def steps_in(folder):
    """The loss of each step, as it was said last."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.mark.parametrize(
    ("fault", "named", "schedule"),
    [
        ("KILL", "killed by signal 9", "1f1b"),
        ("STOP", "stopped, while others waited", "1f1b"),
        ("KILL", "killed by signal 9", "zbv"),
    ],
)
def test_a_stage_that_fails_is_named_and_starts_again_with_the_same_losses(
    shoal, tiny, fault, named, schedule
):
    more = ["--training.steps=400", "--checkpoint.enable=true", "--checkpoint.interval=20"]
    more += ["--metrics.log_freq=1", "--validation.freq=0", "--sample.tokens=0", *BATCH]
    more += [f"--parallelism.pipeline_parallel_schedule={schedule}"]
    whole, torn = tiny.parent / "whole", tiny.parent / "torn"
    assert shoal("train", tiny, *STAGES, f"--job.dump_folder={whole}", *more).returncode == 0
    launcher = [shoal.path, "run", *STAGES[:2], "--limit=3", "--max-restarts=1"]
    command = [*launcher, shoal.path, "train", tiny, STAGES[2], f"--job.dump_folder={torn}", *more]
    command = [str(word) for word in command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        lines_until(process, r"step: +50 ")
        os.kill(rank_of(tiny, 1), signal.Signals[f"SIG{fault}"])
        said = process.communicate(timeout=120)[0]
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert f"rank 1 failed first: {named}" in said
    assert "resume:  step" in said
    assert steps_in(torn) == steps_in(whole)


def left_by(word):
    """What processes with that word on their command line, or shared memory, are there."""
    return running(word), sorted(path.name for path in pathlib.Path("/dev/shm").glob("*shoal*"))


@pytest.mark.parametrize(
    ("backend", "skip", "message"),
    [
        ("shm", "0:44", "micro-batch 0, message 1"),  # the next one comes
        ("shm", "1:45", "micro-batch 1, message 1"),
        ("shm", "0:45", "micro-batch 1, message 1"),  # the last of a step: none does
        ("shm", "1:47", "micro-batch 1, message 3"),
        ("gloo", "0:44", "micro-batch 0, message 1"),
        ("gloo", "1:47", "micro-batch 1, message 3"),
    ],
)
def test_a_stage_that_leaves_out_a_send_is_named_and_starts_again_with_the_same_losses(
    shoal, tiny, backend, skip, message
):
    more = ["--training.steps=30", "--checkpoint.enable=true", "--checkpoint.interval=5", *BATCH]
    more += ["--metrics.log_freq=1", "--validation.freq=0", "--sample.tokens=0"]
    whole, torn = tiny.parent / "whole", tiny.parent / "torn"
    before = left_by(tiny)
    assert shoal("train", tiny, *STAGES, f"--job.dump_folder={whole}", *more).returncode == 0
    skipping = shoal.path.resolve().parent / "shoal_skipping"
    faulty = os.environ | {"SKIP": skip} | ({"SKIP_GLOO": "1"} if backend == "gloo" else {})
    launcher = ["run", *STAGES[:2], "--limit=200", "--max-restarts=1", skipping]
    begin = time.monotonic()
    result = shoal(*launcher, "train", tiny, STAGES[2], f"--job.dump_folder={torn}", *more, env=faulty)
    assert result.returncode == 0, result.stderr
    assert time.monotonic() - begin < 100
    rank, peer = int(skip[0]), 1 - int(skip[0])
    named = (
        rf"rank {rank} failed first: left out send\(f32 x \d+, to {peer}, {message}\), for which rank {peer} "
    )
    assert re.search(f"^shoal run: {named}waits in call", result.stderr, re.M), result.stderr
    assert "call the same functions" not in result.stderr
    assert re.search(r"resume:  step \d+ from ", result.stdout), result.stdout
    assert steps_in(torn) == steps_in(whole)
    assert len(steps_in(torn)) == 30
    assert left_by(tiny) == before
