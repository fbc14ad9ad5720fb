# SPDX-License-Identifier: Apache-2.0
"""What shoal train does in bfloat16 and float16, and says of it."""

import json
import re

import pytest


def metrics(tiny):
    text = (tiny.parent / "out" / "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if "loss" in line]


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
def test_a_lower_precision_is_named_and_trains_to_nearly_the_same_loss(shoal, tiny, compute):
    options = ("--training.steps=60", "--optimizer.lr=1e-2")
    assert shoal("train", tiny, *options).returncode == 0
    wanted = metrics(tiny)[-1]["loss"]
    result = shoal("train", tiny, *options, f"--precision.compute={compute}")
    assert result.returncode == 0, result.stderr
    assert f"precision: products in {compute}" in result.stdout or (
        f"precision: products of what is rounded to {compute}, in float32" in result.stdout
    )
    assert metrics(tiny)[-1]["loss"] == pytest.approx(wanted, rel=0.05)
    assert {line.get("loss_scale") for line in metrics(tiny)} == {None if compute == "bfloat16" else 65536}


def test_updates_that_overflow_are_skipped_and_said(shoal, tiny):
    result = shoal(
        "train",
        tiny,
        "--precision.compute=float16",
        "--precision.scale=16777216",
        "--precision.grows_after=1",
        "--training.steps=10",
    )
    assert result.returncode == 0, result.stderr
    lines = metrics(tiny)
    skipped = [line for line in lines if line.get("skipped")]
    assert skipped
    assert result.stdout.count("skipped: a gradient overflowed in float16, whose loss was scaled by") == len(
        skipped
    )
    assert [line["step"] for line in lines if not line.get("skipped")] == list(range(1, 11))
    scales = [line["loss_scale"] for line in lines]
    for line, scale, following in zip(lines, scales, scales[1:], strict=False):
        assert following == (scale / 2 if line.get("skipped") else scale * 2)


def test_a_run_of_float16_that_is_stopped_goes_on_with_its_scale(shoal, tiny):
    options = ("--precision.compute=float16", "--precision.grows_after=2", "--checkpoint.enable=true")
    options += ("--checkpoint.interval=2", "--precision.scale=4096")
    assert shoal("train", tiny, *options, "--training.steps=6").returncode == 0
    whole = metrics(tiny)
    assert [line["loss_scale"] for line in whole] == [4096, 4096, 8192, 8192, 16384, 16384]
    for path in (tiny.parent / "out").rglob("step_00000006*"):
        path.rename(path.with_name("gone"))
    result = shoal("train", tiny, *options, "--training.steps=6")
    assert result.returncode == 0, result.stderr
    again = metrics(tiny)[-2:]
    assert [(line["step"], line["loss"], line["loss_scale"]) for line in again] == [
        (line["step"], line["loss"], line["loss_scale"]) for line in whole[-2:]
    ]


def test_gradients_in_bfloat16_take_half_of_the_bytes_and_train_to_nearly_the_same_loss(shoal, tiny):
    def sent(*more):
        result = shoal("plan", tiny, "-n", "2", *more)
        number, unit = re.search(r"in all.*?([\d.]+)\s?(KiB|MiB)", result.stdout).groups()
        return float(number) * {"KiB": 1, "MiB": 1024}[unit]

    assert 0.45 < sent("--precision.reduce=bfloat16") / sent() < 0.6
    options = ("-n", "2", "--training.steps=60", "--optimizer.lr=1e-2")
    assert shoal("train", tiny, *options).returncode == 0
    wanted = metrics(tiny)
    result = shoal("train", tiny, *options, "--precision.reduce=bfloat16")
    assert result.returncode == 0, result.stderr
    assert metrics(tiny)[0]["loss"] == wanted[0]["loss"]  # before any gradient
    assert metrics(tiny)[-1]["loss"] != wanted[-1]["loss"]
    assert metrics(tiny)[-1]["loss"] == pytest.approx(wanted[-1]["loss"], rel=0.05)


def test_verify_refuses_gradients_that_are_rounded(shoal, tiny):
    result = shoal("verify", tiny, "-n", "2", "--precision.reduce=bfloat16", "--training.dtype=float32")
    assert result.returncode != 0
    assert "verify: precision.reduce is bfloat16, and gradients that are rounded so differ" in result.stderr


@pytest.mark.parametrize(
    "option, error",
    [
        ("--precision.compute=fp16", "precision.compute is 'fp16'; it is float32, bfloat16 or float16"),
        ("--precision.reduce=fp8", "precision.reduce is 'fp8'; it is float32, bfloat16 or float16"),
        ("--precision.reduce=float16", "reduce=float16 is for gradients of a loss that is scaled"),
        ("--precision.scale=1000", "scale and grows_after are of float16"),
        ("--precision.compute=float16 --precision.scale=1000", "it is a power of two"),
        ("--precision.compute=float16 --precision.grows_after=0", "precision.grows_after"),
    ],
)
def test_what_says_nothing_is_refused(shoal, tiny, option, error):
    result = shoal("train", tiny, *option.split())
    assert result.returncode == 2
    assert error in result.stderr
