# SPDX-License-Identifier: Apache-2.0
"""Runs that end before their end, and go on: killed, terminated, damaged, moved to other data."""

import json
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest
from tensorboard.backend.event_processing import event_accumulator

# Saved at once: steps are shorter here than a write to the disk, and saves that come too soon are left out.
SAVING = [
    "--checkpoint.enable=true",
    "--checkpoint.interval=2",
    "--checkpoint.keep_latest_k=3",
    "--checkpoint.async_mode=disabled",
]
STEPS = 24
LONG = [f"--training.steps={STEPS}", "--validation.freq=0", "--sample.tokens=0", *SAVING]


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def succeeds(result):
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def uninterrupted(shoal, tiny):
    folder = tiny.parent / "uninterrupted"
    began = time.monotonic()
    succeeds(shoal("train", tiny, *LONG, f"--job.dump_folder={folder}"))
    seconds = time.monotonic() - began
    wanted = losses(folder)
    assert [step for step, _ in wanted] == list(range(1, STEPS + 1))
    return wanted, seconds


@pytest.mark.parametrize("readers, modes", [(None, {0o600}), ("group", {0o640}), ("all", {0o644})])
def test_what_is_written_is_for_this_user_unless_more_is_said(shoal, tiny, monkeypatch, readers, modes):
    if readers:
        monkeypatch.setenv("SHOAL_FILES", readers)
    succeeds(shoal("train", tiny, "-n", 2, "--checkpoint.enable=true", f"--log-dir={tiny.parent / 'logs'}"))
    written = [path for top in ("out", "logs") for path in (tiny.parent / top).rglob("*") if path.is_file()]
    names = {path.name for path in written}
    assert {"manifest.json", "metrics.jsonl", "rank_1.log"} <= names, names
    assert {path.stat().st_mode & 0o777 for path in written} == modes
    folders = {path.parent.stat().st_mode & 0o777 for path in written}
    assert folders == {0o700 | mode & 0o77 | (mode & 0o44) >> 2 for mode in modes}


def test_another_word_for_who_may_read_is_refused(shoal, tiny, monkeypatch):
    monkeypatch.setenv("SHOAL_FILES", "world")
    refused = shoal("train", tiny)
    assert refused.returncode == 2
    assert refused.stderr.strip() == (
        'shoal: SHOAL_FILES is "world"; it says who may read what is written: private, group or all'
    )


def test_thirty_kills_at_random_moments_cost_no_bit(shoal, tiny, uninterrupted):
    wanted, seconds = uninterrupted
    folder = tiny.parent / "killed"
    chance = random.Random(5)
    kills = in_saves = resumed = ends = 0
    while kills < 30 or ends < 1 or resumed < 5:
        assert kills < 60, "no run comes to its end"
        mode = chance.choice(["async", "disabled"])
        arguments = [*LONG, f"--job.dump_folder={folder}", f"--checkpoint.async_mode={mode}"]
        command = [str(shoal.path), "train", str(tiny), *arguments]
        began = time.time()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                out, err = process.communicate(timeout=chance.uniform(0.4, 1.1) * seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                kills += 1
                # What a save left unfinished, and the next one removes.
                left = folder.glob("**/.step_*-partial-*")
                in_saves += any(partial.stat().st_mtime > began for partial in left)
        resumed += "resume:" in out
        assert "CRC" not in err and "whole" not in err, err  # no kill leaves a checkpoint that is damaged
        if process.returncode == 0:
            ends += 1
            assert losses(folder) == wanted
            shutil.rmtree(folder)
            if "resume:" not in out:  # how long a run takes by now: else none might be killed any more
                seconds = time.time() - began
        else:
            assert process.returncode == -signal.SIGKILL, err
            # This machine has less time for it than before.
            if kills > 30 or not list(folder.glob("**/step_*")):
                seconds *= 1.2
    succeeds(shoal("train", tiny, *LONG, f"--job.dump_folder={folder}"))
    assert losses(folder) == wanted
    print(
        f"\nseen: {kills} kills, {in_saves} of them in a save; {resumed} runs went on from one, {ends} ended"
    )
    assert resumed >= 5 and ends >= 1


def test_a_kill_at_each_line_that_is_printed_costs_no_bit(shoal, tiny, uninterrupted):
    wanted, _ = uninterrupted
    folder = tiny.parent / "killed"
    arguments = [*LONG, f"--job.dump_folder={folder}", "--metrics.log_freq=1"]
    for step in (1, 3, 7, 12, 20):
        command = [str(shoal.path), "train", str(tiny), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line.startswith(f"step: {step:2}"):
                    process.kill()
                    break
    out = succeeds(shoal("train", tiny, *arguments))
    assert "resume:  step" in out
    assert losses(folder) == wanted


def test_sigterm_ends_the_step_saves_and_says_how_to_go_on(shoal, tiny, uninterrupted):
    wanted, _ = uninterrupted
    arguments = [
        f"--training.steps={STEPS}",
        "--validation.freq=0",
        "--sample.tokens=0",
        "--metrics.log_freq=1",
    ]
    command = [str(shoal.path), "train", str(tiny), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step:  3"):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
    if process.returncode == 0:
        pytest.fail("the run ended before the signal came")
    assert process.returncode == 143
    said = next(line for line in rest.splitlines() if "terminated after step" in line)
    command = said.split("go on with: shoal ")[1].split()
    assert command[-1] == "--checkpoint.enable=true"
    refused = shoal("train", tiny, *arguments)
    assert refused.returncode == 1
    assert "holds checkpoints of an earlier run" in refused.stderr
    succeeds(shoal(*command))
    assert losses(tiny.parent / "out") == wanted


def test_a_finished_run_is_not_trained_again_and_can_be_made_longer(shoal, tiny, uninterrupted):
    wanted, _ = uninterrupted
    folder = tiny.parent / "uninterrupted"
    out = succeeds(shoal("train", tiny, *LONG, f"--job.dump_folder={folder}"))
    assert f"resume:  step {STEPS}" in out and "a larger one goes on" in out
    assert losses(folder) == wanted
    longer = [*LONG, f"--training.steps={STEPS + 2}", f"--job.dump_folder={folder}"]
    succeeds(shoal("train", tiny, *longer))
    assert losses(folder)[:STEPS] == wanted and len(losses(folder)) == STEPS + 2


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(shoal, tiny, uninterrupted):
    wanted, _ = uninterrupted
    folder = tiny.parent / "uninterrupted"
    newest = folder / "checkpoint" / f"step_{STEPS:08}"
    path = newest / "model-0.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    verified = shoal("checkpoint", "verify", folder)
    assert verified.returncode == 1
    assert f"DAMAGED: {path}: bytes 0 to" in verified.stdout
    assert f"the newest whole one is {folder}/checkpoint/step_{STEPS - 2:08}" in verified.stdout
    asked = shoal("train", tiny, *LONG, f"--job.dump_folder={folder}", f"--checkpoint.load_step={STEPS}")
    assert asked.returncode == 1 and f"the checkpoint of step {STEPS - 2} is whole" in asked.stderr
    result = shoal("train", tiny, *LONG, f"--job.dump_folder={folder}")
    assert f"resume:  step {STEPS - 2}" in succeeds(result)
    assert str(path) in result.stderr
    assert losses(folder) == wanted
    assert shoal("checkpoint", "verify", folder).returncode == 0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("--training.seq_len=8", "was made on other data"),
        ("--training.seed=9", "was made on other data"),
        ("--model.n_embd=32", "transformer.wte.weight: is f32[300, 16], wanted f32[300, 32]"),
        ("--optimizer.name=Lion", "exp_avg_sq: f32"),
        ("--checkpoint.load_step=5", "there is no checkpoint of step 5; there are: 20, 22, 24"),
    ],
)
def test_what_does_not_fit_a_checkpoint_is_named(shoal, tiny, uninterrupted, override, said):
    folder = tiny.parent / "uninterrupted"
    result = shoal("train", tiny, *LONG, f"--job.dump_folder={folder}", override)
    assert result.returncode == 1
    assert said in result.stderr


def test_changed_text_is_named(shoal, tiny, uninterrupted):
    text = tiny.parent / "text.txt"
    text.write_text(text.read_text().replace("fox", "cat"))
    result = shoal("train", tiny, *LONG, f"--job.dump_folder={tiny.parent}/uninterrupted")
    assert result.returncode == 1 and "was made on other data" in result.stderr


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_one_before_stays(
    shoal, tiny, uninterrupted
):
    wanted, _ = uninterrupted
    folder = tiny.parent / "uninterrupted"
    longer = [*LONG, f"--training.steps={STEPS + 4}", f"--job.dump_folder={folder}"]

    def limit_files_to_12_kib():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 10, 12 << 10))

    result = shoal("train", tiny, *longer, preexec_fn=limit_files_to_12_kib)
    assert result.returncode == 0, result.stderr
    assert losses(folder)[:STEPS] == wanted and len(losses(folder)) == STEPS + 4
    partial = f"{folder}/checkpoint/.step_{STEPS + 2:08}-partial-"
    assert f"warning: step {STEPS + 2} was not saved: cannot write {partial}" in result.stderr
    assert "the checkpoints before are as they were; training goes on" in result.stderr
    left = sorted(path.name for path in (folder / "checkpoint").iterdir())
    assert left == [f"step_{step:08}" for step in range(STEPS - 4, STEPS + 1, 2)]
    assert shoal("checkpoint", "verify", folder).returncode == 0


def test_two_runs_do_not_share_a_folder(shoal, tiny):
    command = [str(shoal.path), "train", str(tiny), "--training.steps=1000000", "--metrics.log_freq=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step:"):
                break
        second = shoal("train", tiny)
        process.kill()
    assert second.returncode == 1
    assert f"is being written by process {process.pid}" in second.stderr


def test_accumulation_and_prefetching_change_no_loss(shoal, tiny):
    def trained(name, *overrides):
        folder = tiny.parent / name
        options = [
            "--model.embd_pdrop=0",
            "--model.attn_pdrop=0",
            "--model.resid_pdrop=0",
            "--training.dtype=float64",
        ]
        result = shoal("train", tiny, *options, *overrides, f"--job.dump_folder={folder}")
        assert ("micro-batches weigh as many targets as count" in succeeds(result)) == (name == "parts")
        return losses(folder)

    whole = trained("whole", "--training.local_batch_size=4")
    ahead = trained("ahead", "--training.local_batch_size=4", "--dataset.prefetch=0")
    assert whole == ahead
    parts = trained("parts", "--training.local_batch_size=1", "--training.global_batch_size=4")
    for (_, one), (_, many) in zip(whole, parts, strict=True):
        assert many == pytest.approx(one, rel=1e-12)


def test_tensorboard_reads_what_is_logged_of_a_run_that_goes_on_too(shoal, tiny):
    options = ["--metrics.enable_tensorboard=true", "--checkpoint.enable=true"]
    succeeds(shoal("train", tiny, *options))
    succeeds(shoal("train", tiny, *options, "--training.steps=6"))
    out = tiny.parent / "out"
    board = event_accumulator.EventAccumulator(str(out / "tb"))
    board.Reload()
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for key, tag in (("loss", "loss_metrics/loss"), ("lr", "lr"), ("grad_norm", "grad_norm")):
        wanted = [(line["step"], pytest.approx(line[key], rel=1e-6)) for line in logged if key in line]
        assert [(event.step, event.value) for event in board.Scalars(tag)] == wanted
    assert [event.step for event in board.Scalars("loss_metrics/loss")] == [1, 2, 3, 4, 5, 6]


def test_a_picture_of_the_loss_is_written(shoal, tiny):
    succeeds(shoal("train", tiny))
    assert (tiny.parent / "out" / "loss.svg").read_text().count("<circle") == 2


@pytest.mark.parametrize("name", ["Adagrad", "RMSprop", "Lion", "LAMB"])
def test_every_optimizer_and_schedule_trains(shoal, tiny, name):
    schedule = ["--lr_scheduler.decay_type=warmup_stable_decay", "--lr_scheduler.decay_steps=2"]
    succeeds(shoal("train", tiny, f"--optimizer.name={name}", "--optimizer.lr=1e-3", *schedule))
    first, *_, last = losses(tiny.parent / "out")
    assert last[1] < first[1]


def test_a_file_of_token_ids_of_another_tool_is_trained_on(shoal, tiny):
    ids = tiny.parent / "ids.bin"
    ids.write_bytes(b"".join((40 + i % 7).to_bytes(2, "little") for i in range(2000)))
    out = succeeds(shoal("train", tiny, f"--dataset.path={ids}", "--dataset.held_out_bytes=200"))
    assert "1,900 tokens to train on, 100 held out" in out
    wide = shoal("train", tiny, f"--dataset.path={ids}", "--dataset.token_bytes=4")
    assert wide.returncode == 1
    assert f"{ids}: token 0 is 2687016, but the vocabulary has 300" in wide.stderr
