# SPDX-License-Identifier: Apache-2.0
"""precision.master: weights in bfloat16 alone; bytes as they were said, ranks, checkpoints, refusals."""

import json
import pathlib
import re
import shutil

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
MASTERS = ["none", "kahan"]
ZERO3 = ["-n", 2, "--parallelism.data_parallel_shard_degree=2"]
FOUR = ["-n", 4, "--parallelism.data_parallel_shard_degree=4", "--model.vocab_size=4000"]
BIGGER = ["--model.n_embd=64", "--training.local_batch_size=4"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def of(master):
    return ["--precision.compute=bfloat16", f"--precision.master={master}"]


def losses(shoal, tiny, *words):
    result = shoal("train", tiny, *words)
    assert result.returncode == 0, result.stderr
    lines = (tiny.parent / "out" / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line}


@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize("where", [["-n", 1], ZERO3, FOUR], ids=["1 rank", "ZeRO-3", "4 ranks"])
def test_memory_is_what_was_said(shoal, tiny, master, where):
    # So large that what products in bfloat16 take for themselves is nothing beside it.
    large = [*BIGGER, "--model.n_embd=256", "--model.n_layer=2"]
    result = shoal("plan", tiny, *where, *large, *of(master), "--measure")
    assert result.returncode == 0, result.stderr
    said, was = map(int, re.search(r"memory: said (\d+) bytes, was (\d+)", result.stdout).groups())
    assert was <= said <= 1.03 * was, result.stdout


@pytest.mark.parametrize("master", MASTERS)
def test_a_run_ends_where_float32_does_on_any_ranks(shoal, tiny, master):
    options = [*BIGGER, "--training.steps=40", "--optimizer.lr=3e-3", "--training.global_batch_size=8"]
    wanted = losses(shoal, tiny, *options)[40]
    if master == "none":  # chance: 2 % up or down, and as often
        others = [[*options, f"--training.seed={seed}"] for seed in (1, 2, 3, 4)]
        shares = [
            losses(shoal, tiny, "-n", 1, *of(master), *each)[40] / losses(shoal, tiny, *each)[40]
            for each in others
        ]
        assert sum(shares) / len(shares) == pytest.approx(1, rel=0.02), shares
        wanted = losses(shoal, tiny, "-n", 1, *of(master), *options)[40]
    for where in (
        "-n 1",
        "-n 2",
        "-n 2 --parallelism.data_parallel_shard_degree=2 --zero.stage=1",
        "-n 2 --parallelism.data_parallel_shard_degree=2 --zero.stage=3",
        "-n 2 --parallelism.tensor_parallel_degree=2",
        "-n 2 --parallelism.pipeline_parallel_degree=2 --model.n_layer=2",
    ):
        ours = losses(shoal, tiny, *where.split(), *options, *of(master))
        rel = 0.05 if "pipeline" in where else 0.01  # another model
        assert ours[40] == pytest.approx(wanted, rel=rel), where


@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize("where", [[], ZERO3], ids=["1 rank", "ZeRO-3"])
def test_a_run_goes_on_with_the_same_losses(shoal, tiny, master, where):
    saving = ["--checkpoint.enable=true", "--checkpoint.interval=2", "--checkpoint.async_mode=disabled"]
    words = [*where, *BIGGER, *of(master), *saving, "--training.steps=8"]
    wanted = losses(shoal, tiny, *words)
    for folder in (tiny.parent / "out").glob("**/step_0000000[68]"):
        shutil.rmtree(folder)
    assert losses(shoal, tiny, *words) == wanted


@pytest.mark.parametrize(
    "options, error",
    [
        (["--precision.master=kahan"], "keeps weights in bfloat16, and products are in f32"),
        (["--precision.compute=float16", "--precision.master=none"], "and products are in f16"),
        (
            [*of("kahan"), "--optimizer.name=LAMB"],
            "precision.master is for updates that go element by element",
        ),
        ([*of("kahan"), "--training.dtype=float64"], "for models in float32 or bfloat16"),
        ([*of("half")], 'precision.master: there is no "half"'),
    ],
)
def test_what_says_nothing_is_refused(shoal, tiny, options, error):
    result = shoal("train", tiny, *options)
    assert result.returncode == 2
    assert error in result.stderr
    assert "Traceback" not in result.stderr


def test_models_of_numbers_are_refused(shoal):
    result = shoal("train", ROOT / "recipes" / "mlp.toml", *of("none"))
    assert result.returncode == 2
    assert 'dataset.name = "bytes" gives float32 numbers' in result.stderr


def test_verify_refuses_it(shoal, tiny):
    result = shoal("verify", tiny, "-n", 2, *of("kahan"))
    assert result.returncode != 0
    assert "verify: precision.master is kahan" in result.stderr
