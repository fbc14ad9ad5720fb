# SPDX-License-Identifier: Apache-2.0
"""optimizer.state_dtype: its bytes are those that a plan says, ranks are one device, and what is refused."""

import json
import re
import shutil

import pytest

STATES = ["bfloat16", "uint8"]
ZERO3 = ["-n", 2, "--parallelism.data_parallel_shard_degree=2"]
BIGGER = ["--model.n_embd=64", "--training.local_batch_size=4"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def of(state):
    return f"--optimizer.state_dtype={state}"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("where", [["-n", 1], ZERO3], ids=["1 rank", "ZeRO-3"])
def test_memory_is_what_was_said(shoal, tiny, state, where):
    result = shoal("plan", tiny, *where, *BIGGER, of(state), "--measure")
    assert result.returncode == 0, result.stderr
    said, was = map(int, re.search(r"memory: said (\d+) bytes, was (\d+)", result.stdout).groups())
    assert was <= said <= 1.03 * was, result.stdout


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "zero",
    [
        "-n 2",
        "-n 2 --parallelism.data_parallel_shard_degree=2 --zero.stage=1",
        "-n 2 --parallelism.data_parallel_shard_degree=2 --zero.stage=3",
        "-n 2 --parallelism.tensor_parallel_degree=2",
        "-n 2 --parallelism.pipeline_parallel_degree=2 --model.n_layer=2",
    ],
)
def test_ranks_are_one_device(shoal, tiny, state, zero):
    result = shoal("verify", tiny, *zero.split(), *BIGGER, of(state), "--verify.steps=3")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("where", [[], ZERO3], ids=["1 rank", "ZeRO-3"])
def test_a_run_goes_on_with_the_same_losses(shoal, tiny, state, where):
    out = tiny.parent / "out"
    saving = ["--checkpoint.enable=true", "--checkpoint.interval=2", "--checkpoint.async_mode=disabled"]
    words = ["train", tiny, *where, *BIGGER, of(state), *saving, "--training.steps=8"]

    def losses():
        result = shoal(*words)
        assert result.returncode == 0, result.stderr
        lines = (out / "metrics.jsonl").read_text().splitlines()
        return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line}

    wanted = losses()
    for folder in out.glob("**/step_0000000[68]"):
        shutil.rmtree(folder)
    assert losses() == wanted
    other = [f"--optimizer.state_dtype={'float32' if state != 'float32' else 'bfloat16'}"]
    result = shoal(*words, *other)
    assert result.returncode != 0
    assert re.search(r"exp_avg: is (bf16|u8).*wanted f32", result.stderr), result.stderr
    assert "Remedy: the optimizer's state_dtype as it was there" in result.stderr


def test_what_has_no_such_state_is_refused(shoal, tiny):
    result = shoal("train", tiny, "--optimizer.name=LAMB", of("bfloat16"))
    assert result.returncode != 0
    assert 'optimizer.name = "LAMB" looks at whole tensors' in result.stderr
    result = shoal("train", tiny, of("float16"))
    assert result.returncode != 0
    assert 'optimizer.state_dtype: there is no "float16"' in result.stderr
