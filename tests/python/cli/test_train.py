# SPDX-License-Identifier: Apache-2.0
"""What shoal train and shoal capture print and leave behind."""

import json
import os
import pathlib
import re

import pytest

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "cli"
RECIPES = pathlib.Path(__file__).resolve().parents[3] / "recipes"


@pytest.mark.parametrize(
    "verb", ["", "calibrate", "capture", "checkpoint", "generate", "plan", "simulate", "train", "verify"]
)
def test_the_help_and_with_it_the_keys_are_frozen(shoal, verb):
    result = shoal(*[verb] if verb else [], "--help")
    golden = GOLDEN / f"help{'_' + verb if verb else ''}.txt"
    if os.environ.get("SHOAL_UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(result.stdout)
    assert result.returncode == 0
    assert result.stdout == golden.read_text()


def test_the_version_is_printed(shoal):
    assert re.fullmatch(r"shoal \d+\.\d+\.\d+\n", shoal("--version").stdout)


def test_training_leaves_metrics_results_trace_and_sample(shoal, tiny):
    result = shoal("train", tiny, "--profiling.enable_profiling=true")
    assert result.returncode == 0, result.stderr
    number = r"[\d.,]+"
    assert re.search(
        rf"^step:  4  loss: +{number}  grad_norm: +{number}  memory: {number}MiB  tps: {number}  "
        rf"tflops: {number}  mfu: {number}%  left: 0s$",
        result.stdout,
        re.M,
    )
    assert re.search(rf"held-out bits per byte: {number}  \(byte trigram model: {number}\)", result.stdout)
    out = tiny.parent / "out"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    assert [line["step"] for line in lines if "validation_loss" in line] == [2, 4]
    results = json.loads((out / "results.json").read_text())
    assert results["steps"] == 4 and not results["interrupted"]
    assert results["bits_per_byte"] == lines[-1]["validation_bits_per_byte"]
    assert json.loads((out / "trace.json").read_text())["traceEvents"]
    assert (out / "sample.txt").read_bytes().startswith(b"def ")


def test_the_same_recipe_gives_the_same_losses_from_its_cache(shoal, tiny):
    def losses():
        assert shoal("train", tiny).returncode == 0
        lines = (tiny.parent / "out" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line).get("loss") for line in lines]

    first = losses()
    assert (tiny.parent / "out" / "tokens.bin").exists()
    assert losses() == first


def test_held_out_loss_falls_on_text_that_repeats(shoal, tiny):
    result = shoal("train", tiny, "--training.steps=150", "--optimizer.lr=1e-2", "--metrics.log_freq=150")
    assert result.returncode == 0, result.stderr
    results = json.loads((tiny.parent / "out" / "results.json").read_text())
    assert results["bits_per_byte"] < 1.5


def test_capture_prints_the_whole_step(shoal, tiny):
    result = shoal("capture", tiny)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("graph captured\n")
    for part in (
        'parameter "transformer.wte.weight"',
        "@forward",
        "@backward",
        "@update",
        'return loss "loss"',
    ):
        assert part in result.stdout


@pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.toml")))
def test_every_recipe_is_captured(shoal, recipe):
    assert shoal("capture", f"recipes/{recipe}.toml").stdout.startswith("graph captured\n")
