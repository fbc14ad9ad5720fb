# SPDX-License-Identifier: Apache-2.0
"""What is said of a rank's memory before a run, beside what its allocator says."""

import importlib.util
import json
import pathlib
import random
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Small, but with what each recipe has: its layers, its optimizer, clipping.
SMALL = {
    "bert": "--model.vocab_size=300 --model.hidden_size=32 --model.num_attention_heads=2 "
    "--model.intermediate_size=64 --model.num_hidden_layers=2 --training.local_batch_size=4 "
    "--training.seq_len=32",
    "dlrm": "--training.local_batch_size=64",
    "gpt": "--model.vocab_size=300 --model.n_embd=32 --model.n_head=2 --model.n_layer=2 "
    "--training.local_batch_size=4 --training.seq_len=32",
    "llama": "--model.vocab_size=300 --model.hidden_size=32 --model.intermediate_size=64 "
    "--model.num_hidden_layers=2 --model.num_attention_heads=4 --model.num_key_value_heads=2 "
    "--model.tie_word_embeddings=false --training.local_batch_size=4 --training.seq_len=32",
    "lstm": "--model.vocab_size=300 --model.embedding_size=64 --model.hidden_size=128 "
    "--training.local_batch_size=8 --training.seq_len=32",
    "mlp": "--model.hidden=[64] --training.local_batch_size=16",
    "resnet": "--model.width=16 --model.num_classes=10 --dataset.image_size=32",
    "t5": "--model.vocab_size=300 --model.d_model=32 --model.d_kv=16 --model.d_ff=64 --model.num_heads=2 "
    "--training.local_batch_size=4 --training.seq_len=64",
    "vit": "--model.hidden_size=32 --model.num_attention_heads=2 --model.intermediate_size=64 "
    "--training.local_batch_size=16",
}
SPEC = importlib.util.spec_from_file_location("bench_memory", ROOT / "bench" / "memory.py")
BENCH = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(BENCH)


def words(recipe, strategy):
    return SMALL[recipe].split() + (BENCH.words_of(recipe, strategy) or ["-n", "1"])


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("strategy", BENCH.STRATEGIES)
@pytest.mark.parametrize("recipe", SMALL)
def test_no_instruction_takes_more_than_is_said(shoal, one_thread, recipe, strategy):
    most_of_a_step(shoal, [f"recipes/{recipe}.toml", *words(recipe, strategy)])


@pytest.mark.parametrize("strategy", ["1 rank", "ZeRO-3", "tensor"])
@pytest.mark.parametrize("recipe", ["gpt", "llama", "vit"])
def test_recompute_takes_what_is_said_and_less(shoal, one_thread, recipe, strategy):
    of = [f"recipes/{recipe}.toml", *words(recipe, strategy)]
    plain = most_of_a_step(shoal, of)
    full = most_of_a_step(shoal, [*of, "--recompute.mode=full"])
    selective = most_of_a_step(shoal, [*of, "--recompute.mode=selective"])
    assert full <= selective <= plain
    assert full < plain


KINDS = ["parameters", "optimizer_state", "gradients", "activations"]
OFFLOAD = [f"--offload.{kind}=true" for kind in KINDS] + ["--offload.least=1B"]


@pytest.mark.parametrize("strategy", ["1 rank", "DP", "ZeRO-3", "tensor"])
@pytest.mark.parametrize("recipe", ["gpt", "lstm", "resnet"])
def test_offload_takes_what_is_said_and_less(shoal, one_thread, recipe, strategy):
    of = [f"recipes/{recipe}.toml", *words(recipe, strategy)]
    plain = most_of_a_step(shoal, of)
    assert most_of_a_step(shoal, [*of, *OFFLOAD]) < 0.8 * plain


@pytest.mark.parametrize("strategy", ["1 rank", "DP", "ZeRO-2", "ZeRO-3"])
def test_a_run_that_offloads_takes_what_was_said_and_is_the_same(shoal, one_thread, tiny, strategy):
    of = [*BENCH.STRATEGIES[strategy].split(), "--model.n_embd=256", "--training.seq_len=16"]
    of += ["--training.local_batch_size=8", "--training.max_norm=0.5"]

    def trained(*more):
        result = shoal("train", tiny, *of, *more)
        assert result.returncode == 0, result.stderr
        memory = memory_of(tiny)
        assert memory["peak_bytes"] <= memory["predicted_bytes"] <= 1.1 * memory["peak_bytes"]
        lines = (tiny.parent / "out" / "metrics.jsonl").read_text().splitlines()
        return memory, [json.loads(line)["loss"] for line in lines if '"loss"' in line]

    plain, losses = trained()
    offloaded, same = trained(*OFFLOAD)
    assert same == losses
    assert offloaded["phases"]["steps"] < 0.7 * plain["phases"]["steps"]
    # Sums of micro-batches too.
    part = ["--training.local_batch_size=4", "--training.global_batch_size=32"]
    _, losses = trained(*part)
    _, same = trained(*part, *OFFLOAD)
    assert same == losses


def test_what_can_not_be_offloaded_is_said(shoal, tiny, tmp_path):
    for words, error in [
        (
            ["--offload.activations=true", "--offload.folder=/nowhere"],
            "offload.folder /nowhere does not exist",
        ),
        (["--offload.least=1MiB"], "how small what stays in memory is, and not what goes"),
        (["--offload.activations=true", "--offload.least=1MB"], "1MB' is no number of bytes"),
    ]:
        result = shoal("train", tiny, *words)
        assert result.returncode != 0
        assert error in result.stderr


@pytest.mark.parametrize("recipe", ["gpt", "resnet", "t5"])
def test_ranks_that_offload_equal_one_device(shoal, one_thread, recipe):
    of = ["-n", 2, "--parallelism.data_parallel_shard_degree=2", "--training.dtype=float64"]
    result = shoal("verify", f"recipes/{recipe}.toml", *SMALL[recipe].split(), *of, *OFFLOAD)
    assert result.returncode == 0, result.stdout + result.stderr


def most_of_a_step(shoal, words):
    result = shoal("plan", *words, "--measure")
    assert result.returncode == 0, result.stderr
    said, was = map(int, re.search(r"memory: said (\d+) bytes, was (\d+)", result.stdout).groups())
    assert was <= said <= 1.03 * was, result.stdout
    for line in re.findall(r"^  said .*$", result.stdout, re.M):
        peak, after, was_peak, was_after = map(
            int, re.match(r"  said (\d+) then (\d+), was (\d+) then (\d+)", line).groups()
        )
        assert peak >= was_peak and after == was_after, line
    return was


def memory_of(recipe):
    return json.loads((recipe.parent / "out" / "results.json").read_text())["memory"]


SAVES = ["--checkpoint.enable=true", "--checkpoint.interval=2"]


def memory_in_stages(shoal, tiny, schedule, microbatches, samples):
    bigger = "--model.n_layer=4 --model.n_embd=128 --model.n_positions=64 --training.seq_len=64".split()
    bigger += [f"--training.local_batch_size={microbatches * samples}", "--sample.tokens=0"]
    stages = ["-n", 2, "--parallelism.pipeline_parallel_degree=2"]
    stages += [f"--parallelism.pipeline_parallel_schedule={schedule}"]
    stages += [f"--parallelism.pipeline_parallel_microbatches={microbatches}"]
    result = shoal("train", tiny, *stages, *bigger)
    assert result.returncode == 0, result.stderr
    return memory_of(tiny)


@pytest.mark.parametrize(
    ("schedule", "microbatches"),
    [
        *[(name, 8) for name in ("gpipe", "1f1b", "looped_bfs", "interleaved_1f1b", "zb_h1", "zb_h2")],
        *[("zbv", count) for count in (3, 4, 8)],
        *[("dualpipev", count) for count in (3, 8)],
    ],
)
def test_a_run_in_stages_takes_what_was_said(shoal, one_thread, tiny, schedule, microbatches):
    memory = memory_in_stages(shoal, tiny, schedule, microbatches, 2)
    assert memory["peak_bytes"] <= memory["predicted_bytes"] <= 1.1 * memory["peak_bytes"]


def test_stages_keep_no_more_micro_batches_than_their_schedule_has_under_way(shoal, one_thread, tiny):
    def steps(schedule, microbatches):
        return memory_in_stages(shoal, tiny, schedule, microbatches, 4)["phases"]["steps"]

    two = steps("1f1b", 2)  # as many as stages
    for schedule in ("1f1b", "zb_h1"):
        # Tokens of more samples, and messages that the other rank has not taken yet.
        assert steps(schedule, 8) <= 1.05 * two
    assert steps("gpipe", 8) > 2 * two


@pytest.mark.parametrize("more", [[], SAVES], ids=["", "saving"])
@pytest.mark.parametrize("strategy", ["1 rank", "ZeRO-3"])
def test_a_run_takes_what_was_said(shoal, one_thread, tiny, strategy, more):
    bigger = "--model.n_embd=256 --training.seq_len=16 --training.local_batch_size=8".split()
    result = shoal("train", tiny, *BENCH.STRATEGIES[strategy].split(), *bigger, *more)
    assert result.returncode == 0, result.stderr
    memory = memory_of(tiny)
    assert memory["peak_bytes"] <= memory["predicted_bytes"] <= 1.1 * memory["peak_bytes"]
    assert re.search(r"^(\[0\] )?memory:  .* at most, for .*; predicted ", result.stdout, re.M)


def test_a_run_stays_below_its_limit_or_is_refused(shoal, one_thread, tiny):
    bigger = ["--model.n_embd=256", "--training.local_batch_size=16"]
    assert shoal("train", tiny, *bigger).returncode == 0
    predicted = memory_of(tiny)["predicted_bytes"]
    drawn = random.Random(0)
    limits = [predicted - 1, predicted] + [round(predicted * drawn.uniform(0.5, 1.5)) for _ in range(3)]
    for limit in limits:
        result = shoal("train", tiny, *bigger, f"--memory.limit={limit}B")
        if limit < predicted:
            assert result.returncode != 0
            assert re.search(
                rf"memory.limit is {limit}B, and a rank takes {predicted} bytes at most, for a step: \S+"
                r".*\. \d+MiB would do",
                result.stderr,
            ), result.stderr
        else:
            assert result.returncode == 0, result.stderr
            assert memory_of(tiny)["peak_bytes"] <= limit


@pytest.mark.parametrize("strategy", ["1 rank", "ZeRO-3"])
def test_memory_auto_keeps_a_limit_down_to_the_least_and_trains_the_same(shoal, one_thread, tiny, strategy):
    of = ["train", tiny, *BENCH.STRATEGIES[strategy].split(), "--model.n_layer=3"]
    of += ["--training.local_batch_size=64", "--training.steps=3", "--model.embd_pdrop=0"]

    def run(*more):
        result = shoal(*of, *more)
        lines = (tiny.parent / "out" / "metrics.jsonl").read_text().splitlines()
        return result, [json.loads(line)["loss"] for line in lines if '"loss"' in line]

    def limited(limit):
        return run("--memory.auto=true", f"--memory.limit={limit}B")

    result, losses = run()
    assert result.returncode == 0, result.stderr
    free = memory_of(tiny)["predicted_bytes"]
    refused, _ = limited(1)
    assert refused.returncode != 0
    least = int(re.search(r"the least that a rank takes is (\d+) bytes", refused.stderr)[1])
    assert least < 0.8 * free
    assert limited(least - 1)[0].returncode != 0
    drawn = random.Random(1)
    said = []
    for limit in [
        least,
        free,
        *(drawn.randint(least, free) for _ in range(2 if strategy == "1 rank" else 0)),
    ]:
        result, now = limited(limit)
        assert result.returncode == 0, result.stderr
        assert memory_of(tiny)["peak_bytes"] <= limit
        assert now == pytest.approx(losses, rel=1e-4)
        said.append(re.search(r"memory.auto: (.*)", result.stdout)[1])
    assert "micro-batches of" in said[0]
    assert said[1].startswith("as it is")


def test_memory_auto_knows_the_least_of_every_stage(shoal, one_thread):
    words = ["recipes/gpt.toml", *SMALL["gpt"].split(), "-n", 2, "--parallelism.pipeline_parallel_degree=2"]
    words += ["--memory.auto=true"]
    refused = shoal("plan", *words, "--memory.limit=1B")
    assert refused.returncode != 0
    least = int(re.search(r"the least that a rank takes is (\d+) bytes", refused.stderr)[1])
    assert shoal("plan", *words, f"--memory.limit={least}B").returncode == 0
    assert shoal("plan", *words, f"--memory.limit={least - 1}B").returncode != 0


def test_memory_auto_wants_a_limit_and_the_choice(shoal, tiny):
    result = shoal("plan", tiny, "-n", 1, "--memory.auto=true")
    assert result.returncode != 0
    assert "memory.auto chooses what keeps memory.limit, and there is none" in result.stderr
    result = shoal(
        "plan", tiny, "-n", 1, "--memory.auto=true", "--memory.limit=1GiB", "--recompute.mode=full"
    )
    assert result.returncode != 0
    assert "memory.auto chooses what is made again, and recompute is said" in result.stderr


def test_a_model_with_batch_statistics_keeps_its_batch(shoal, one_thread):
    words = ["recipes/resnet.toml", "-n", 1, *SMALL["resnet"].split(), "--training.local_batch_size=64"]
    free = re.search(r"memory of a rank: ([\d.]+)MiB at most", shoal("plan", *words).stdout)
    assert free
    result = shoal("plan", *words, "--memory.auto=true", "--memory.limit=1B")
    assert result.returncode != 0
    assert "with all recompute there is, all that can be offloaded in a file. " in result.stderr
    limit = int(float(free[1]) * 0.93 * 2**20)
    result = shoal("plan", *words, "--memory.auto=true", f"--memory.limit={limit}B")
    assert re.search(
        r"memory.auto: (recompute until activations fit in [\d.]+MiB|.* offloaded to a file), \d",
        result.stdout,
    )
    assert "micro-batches of" not in result.stdout


def test_a_plan_refuses_and_says_what_would_do(shoal, one_thread, tiny):
    result = shoal("plan", tiny, "-n", 2, "--memory.limit=1KiB")
    assert result.returncode != 0
    least = int(re.search(r"(\d+)MiB would do", result.stderr)[1])
    assert shoal("plan", tiny, "-n", 2, f"--memory.limit={least}MiB").returncode == 0
    result = shoal("plan", tiny, "-n", 2, "--memory.limit=2 GB")
    assert 'memory.limit is "2 GB"; it is a number with a unit' in result.stderr


def test_verify_refuses_a_limit_that_it_would_not_keep(shoal, tiny):
    words = ["-n", 2, "--verify.steps=1"]
    result = shoal("verify", tiny, *words, "--memory.limit=1GiB")
    assert result.returncode != 0
    assert "verify: memory.limit is 1GiB, and all ranks are threads of one process here" in result.stderr
    assert shoal("verify", tiny, *words, "--memory.limit=").returncode == 0
