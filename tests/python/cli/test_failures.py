# SPDX-License-Identifier: Apache-2.0
"""What goes wrong while training ends in one line that names the thing, and exit code 1."""

import json
import os
import resource
import signal
import subprocess

import pytest


def fails(result, *parts):
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("shoal: ")
    assert "Exception raised" not in result.stderr and "frame #" not in result.stderr
    for part in parts:
        assert part in result.stderr


def test_missing_text_is_named(shoal, tiny):
    fails(shoal("train", tiny, "--dataset.path=/no/where"), "dataset.path: there is no /no/where")


def test_empty_text_is_named(shoal, tiny):
    (tiny.parent / "text.txt").write_text("")
    fails(shoal("train", tiny), f"dataset.path: {tiny.parent}/text.txt holds no text")


def test_too_little_text_for_what_is_held_out_is_named(shoal, tiny):
    (tiny.parent / "text.txt").write_text("short")
    fails(
        shoal("train", tiny),
        "dataset.held_out_bytes is 400, which is not between 1 and half of the text's 5 bytes",
    )


def test_text_shorter_than_a_window_is_named(shoal, tiny):
    (tiny.parent / "text.txt").write_text("0123456789abcdef")
    fails(
        shoal("train", tiny, "--dataset.held_out_bytes=8"),
        "fewer than the 17 of one window",
        "training.seq_len",
    )


def test_a_folder_that_cannot_be_made_is_named(shoal, tiny):
    (tiny.parent / "out").write_text("a file")
    fails(shoal("train", tiny), f"cannot make the folder {tiny.parent}/out", "--job.dump_folder")


def limit_files_to_512_bytes():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))


def test_a_file_that_cannot_grow_is_named(shoal, tiny):
    result = shoal("train", tiny, preexec_fn=limit_files_to_512_bytes)
    fails(result, f"cannot write {tiny.parent}/out/tokens.bin: File too large")
    assert not (tiny.parent / "out" / "tokens.bin").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_named(shoal, tiny):
    (tiny.parent / "out").mkdir()
    (tiny.parent / "out" / "metrics.jsonl").symlink_to("/dev/full")
    fails(shoal("train", tiny), "metrics.jsonl: No space left on device; free some space there")


def test_a_loss_that_is_not_finite_is_named_with_its_module(shoal, tiny):
    fails(
        shoal(
            "train",
            tiny,
            "--optimizer.lr=1000",
            "--optimizer.name=SGD",
            "--training.max_norm=0",
            "--training.steps=50",
        ),
        "transformer",
    )


def test_ctrl_c_ends_the_step_and_keeps_what_there_is(shoal, tiny):
    command = [str(shoal.path), "train", str(tiny), "--training.steps=1000000", "--metrics.log_freq=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step:  3"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
    assert process.returncode == 130
    assert "interrupted after step" in rest
    results = json.loads((tiny.parent / "out" / "results.json").read_text())
    assert results["interrupted"] and results["steps"] >= 3 and results["bits_per_byte"] > 0
