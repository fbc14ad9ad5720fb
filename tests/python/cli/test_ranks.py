# SPDX-License-Identifier: Apache-2.0
"""Ranks that train a recipe together as one device does, from and to any checkpoint, whoever started them."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
from processes import rank_of

DOUBLE = ["--training.dtype=float64", "--sample.tokens=0"]
BATCH = ["--training.local_batch_size=4", "--training.global_batch_size=4"]
HYBRID = ["--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=2"]
TENSOR = ["--parallelism.tensor_parallel_degree=2", "--plan=recipes/plans/gpt2_tensor.plan"]
SHARD = "--parallelism.data_parallel_shard_degree=-1"


def losses_in(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [value for line in lines for key, value in line.items() if key in {"loss", "validation_loss"}]


@pytest.fixture
def losses(shoal, tiny):
    """losses("name", option, …) -> those of a run into a folder of that name."""

    def call(name, *options):
        folder = tiny.parent / name
        result = shoal("train", tiny, f"--job.dump_folder={folder}", *DOUBLE, *options)
        assert result.returncode == 0, result.stdout + result.stderr
        return losses_in(folder)

    return call


@pytest.mark.parametrize(
    "strategy",
    [
        ["-n", 2],
        ["-n", 2, SHARD, "--zero.stage=1"],
        ["-n", 2, SHARD, "--zero.stage=2"],
        ["-n", 3, SHARD],
        ["-n", 3, SHARD, "--zero.gathers=once"],
        ["-n", 4, *HYBRID],
        ["-n", 2, *TENSOR],
        ["-n", 2, TENSOR[0], "--plan=recipes/plans/gpt2_sequence.plan"],
        ["-n", 4, *TENSOR, SHARD],
    ],
    ids=str,
)
def test_ranks_have_the_losses_of_one_device(losses, strategy):
    wanted = losses("alone", *BATCH)
    assert len(wanted) == 6
    assert losses("together", *BATCH, *strategy) == pytest.approx(wanted, rel=1e-9)


def test_the_local_batch_size_is_that_of_a_rank(losses):
    wanted = losses("alone", "--training.local_batch_size=2", "--training.global_batch_size=8")
    parts = losses("parts", "-n", 2, "--training.local_batch_size=1", "--training.global_batch_size=8")
    assert parts == pytest.approx(wanted, rel=1e-9)  # four micro-batches of two samples, either way
    once = losses("once", "-n", 2, "--training.local_batch_size=4")
    assert once == losses("said", "-n", 2, "--training.local_batch_size=4", "--training.global_batch_size=8")


@pytest.mark.parametrize(("first", "second"), [(["-n", 3, SHARD], []), ([], ["-n", 2, SHARD])], ids=str)
def test_a_checkpoint_goes_on_on_any_mesh(losses, first, second):
    wanted = losses("alone", *BATCH)
    losses("out", *BATCH, *first, "--checkpoint.enable=true", "--training.steps=2")
    went_on = losses("out", *BATCH, *second, "--checkpoint.enable=true")
    # The run of two steps ended with a look at all that is held out, which the long one has at its end.
    assert went_on[-3:] == pytest.approx(wanted[-3:], rel=1e-9)


def test_the_first_rank_alone_prints_and_writes(shoal, tiny):
    result = shoal("train", tiny, "-n", 2, "--checkpoint.enable=true", "--metrics.enable_tensorboard=true")
    assert (result.returncode, result.stderr) == (0, "")
    assert all(line.startswith("[0] ") for line in result.stdout.splitlines())
    assert "ranks:   2, replicate=2 shard=1 tensor=1; 4 samples are shared among 2" in result.stdout
    out = tiny.parent / "out"
    assert len(list((out / "tb").iterdir())) == 1
    assert json.loads((out / "results.json").read_text())["ranks"] == 2
    assert shoal("checkpoint", "verify", out).returncode == 0


def test_a_process_of_a_job_joins_it(shoal, tiny):
    result = shoal("run", "-n", 2, shoal.path, "train", tiny)
    assert result.returncode == 0, result.stderr
    assert "[0] ranks:   2," in result.stdout
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29555",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    ranks = [
        subprocess.Popen(
            [shoal.path, "train", tiny],
            env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "ranks:   2," in said[0]
    assert said[1] == ""


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun: tools/setup.sh --tests")
def test_ranks_that_mpirun_starts_train_as_ours_do(shoal, tiny, losses):
    wanted = losses("ours", "-n", 2)
    folder = tiny.parent / "theirs"
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", str(shoal.path), "train"]
    result = subprocess.run(
        [*command, str(tiny), f"--job.dump_folder={folder}", *DOUBLE],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "ranks:   2," in result.stdout
    assert losses_in(folder) == wanted


def test_a_rank_starts_no_ranks(shoal, tiny):
    result = shoal("run", "-n", 2, shoal.path, "train", tiny, "-n", 2)
    assert result.returncode == 1
    assert "train: -n 2 starts ranks, and this process is rank 0 of 2 of a job already" in result.stderr


def test_ranks_with_different_recipes_are_told_so(shoal, tiny):
    script = f"exec {shoal.path} train {tiny} --optimizer.lr=0.$((1 + RANK))"
    result = shoal("run", "-n", 2, "sh", "-c", script)
    assert result.returncode == 1
    assert (
        "different recipes: optimizer.lr of rank 1 is not that of rank 0; here, on rank 0, it is 0.1"
        in result.stderr
    )


@pytest.fixture(params=[SHARD, "--parallelism.pipeline_parallel_degree=2"], ids=["ZeRO-3", "stages"])
def endless(shoal, tiny, request):
    """Two ranks that train until they are told otherwise; the first step is made."""
    command = [
        shoal.path,
        "train",
        tiny,
        "-n",
        2,
        request.param,
        *BATCH,
        "--max-restarts=1",
        "--checkpoint.enable=true",
    ]
    more = [
        "--checkpoint.interval=5",
        "--training.steps=1000000",
        "--validation.freq=0",
        "--metrics.log_freq=1",
    ]
    process = subprocess.Popen(
        [str(word) for word in [*command, *more]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    yield process
    process.kill()
    process.communicate(timeout=60)


def lines_until(process, pattern):
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"the output ended without {pattern}")


def test_a_signal_saves_on_all_ranks_and_says_how_to_go_on(endless, tiny):
    lines_until(endless, r"step: +3 ")
    endless.send_signal(signal.SIGTERM)
    step = int(lines_until(endless, rf"terminated after step (\d+) .* shoal train -n 2 {tiny}")[1])
    assert endless.wait(timeout=60) == 143
    assert (tiny.parent / "out" / "checkpoint" / f"step_{step:08}" / "manifest.json").exists()


def test_ranks_start_again_from_their_checkpoint_when_one_is_killed(endless, tiny):
    lines_until(endless, r"step: +20 ")
    os.kill(rank_of(tiny, 1), signal.SIGKILL)
    assert int(lines_until(endless, r"resume:  step (\d+)")[1]) >= 5
    lines_until(endless, r"step: +")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-n", 4, "--parallelism.data_parallel_shard_degree=3"], "these would fit: 1 x 1 x 4, 1 x 2 x 2"),
        (["-n", 4, "--parallelism.data_parallel_shard_degree=0"], "a degree is 0"),
        (["-n", 4, "--training.global_batch_size=3"], "shares a batch among 4 ranks"),
        (["-n", 2, "--training.global_batch_size=5"], "2 micro-batches of at most 4 samples"),
        (["-n", 2, "--zero.stage=2"], "ZeRO stage 2 stores parts over the axis 'shard'"),
        (["-n", 2, "--zero.stage=4"], "zero.stage"),
        (["-n", 2, SHARD, "--zero.stage=2", "--zero.gathers=once"], "at ZeRO stage 2 parameters are whole"),
        (["-n", 2, "--plan=no/such.plan"], "parallelism.plan: there is no file no/such.plan"),
        (
            ["-n", 2, "--plan=recipes/plans/llama_tensor.plan"],
            "this model has no parameter model.embed_tokens",
        ),
        (["-n", 2, "--plan={folder}/mesh.plan"], "is placed on axis 'time', and the mesh is 'replicate=2"),
        (["-n", 2, "--plan={folder}/twice.plan", *TENSOR[:1]], "leave one of them out"),
        (["-n", 2, "--annotate.0.split=2"], "annotate.0.modules is not said"),
        (
            ["-n", 2, "--annotate.0.modules=transformer.h.*.mpl", *TENSOR[:1]],
            "has no parameter transformer.h.*.mpl",
        ),
        (
            ["-n", 2, "--annotate.0.modules=transformer.h.*.mlp"],
            "'split transformer.h.*.mlp', and no axis of",
        ),
        (
            ["-n", 2, "--annotate.0.modules=transformer.h.*.mlp", "--annotate.0.split=4", *TENSOR[:1]],
            "is to be split over 4, and axis 'tensor' of 'replicate=1 shard=1 tensor=2' has 2 ranks",
        ),
        (["-n", 2, "--plan={folder}/stages.plan"], "a stage begins at 'transformer.h.1', and no axis of"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_before_ranks_start(shoal, tiny, options, said):
    line = "parameter transformer.wte.weight "
    (tiny.parent / "mesh.plan").write_text(line + "time=S(0)\n")
    (tiny.parent / "stages.plan").write_text("stage transformer.h.1\n")
    (tiny.parent / "twice.plan").write_text(line + "tensor=S(0)\n" + line + "tensor=S(1)\n")
    result = shoal("train", tiny, *(str(option).format(folder=tiny.parent) for option in options))
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_verify_compares_every_step(shoal, tiny):
    result = shoal("verify", tiny, "-n", 4, *HYBRID, "--verify.steps=2", "--training.global_batch_size=16")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("dtype:    float64, since nothing else is said")
    assert "zero.stage -1, 2 x 8 samples" in lines[1]
    assert [line.split(":")[0] for line in lines[2:-1]] == ["step 1", "step 2"]
    assert float(re.fullmatch(r"largest error: (.*), allowed 1e-09", lines[-1])[1]) < 1e-11


def test_what_is_annotated_is_split_and_nothing_else(shoal, tiny):
    annotated = tiny.parent / "annotated.toml"
    annotated.write_text(tiny.read_text() + '[[annotate]]\nmodules = "transformer.h.*.mlp"\nsplit = 2\n')
    options = ["-n", 2, *TENSOR[:1]]
    result = shoal("verify", annotated, *options, "--verify.steps=2")
    assert result.returncode == 0, result.stdout + result.stderr
    said = shoal("plan", annotated, *options).stdout
    assert re.search(r"mlp.c_fc.weight \S* *\[16, 64\] +tensor=S\(", said), said
    assert re.search(r"mlp.c_proj.weight \S* *\[64, 16\] +tensor=S\(", said), said
    assert re.search(r"attn.c_attn.weight \S* *\[16, 48\] +whole", said), said
    assert float(re.search(r"split along tensor +([\d.]+) % of the flops", said)[1]) > 99, (
        said
    )  # the batch, outside


def test_verify_names_what_differs_first(shoal, tiny):
    # Steps so long that what one way to sum differs by from another grows to what is not allowed.
    wider = ["--model.n_layer=2", "--model.n_embd=32", "--model.n_head=4", "--training.local_batch_size=4"]
    chaos = ["--training.dtype=float32", "--optimizer.lr=30", "--training.max_norm=0"]
    result = shoal("verify", tiny, "-n", 3, *chaos, *wider, "--verify.steps=6")
    assert result.returncode == 1, result.stdout
    assert re.search(r"^differs first in step \d+: .*, made by \S+ in module \"", result.stdout, re.M)
    assert result.stdout.splitlines()[-1].startswith("largest error: ")


def test_verify_draws_strategies(shoal, tiny):
    result = shoal("verify", tiny, "-n", 4, "--random=4", "--seed=7", "--verify.steps=1")
    assert result.returncode == 0, result.stdout
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[1:5]] == ["seed 7", "seed 8", "seed 9", "seed 10"]
    assert lines[5] == "strategies that differ: 0 of 4"
    assert (
        shoal("verify", tiny, "-n", 4, "--random=1", "--seed=9", "--verify.steps=1").stdout.splitlines()[1]
        == lines[3]
    )


def test_a_plan_says_what_lies_where_and_what_is_sent(shoal, tiny):
    result = shoal("plan", tiny, "-n", 8, *HYBRID, *TENSOR, "--dry-run")
    assert result.returncode == 0, result.stderr
    said = result.stdout
    assert "mesh: replicate=2 shard=2 tensor=2, 8 ranks\n  along tensor       0 1 | 2 3 | 4 5 | 6 7\n" in said
    assert re.search(
        r"transformer.h.\*.mlp.c_fc.weight +\[16, 64\] +shard=S\(0\) tensor=S\(1\) -> tensor=S\(1\)", said
    )
    assert re.search(r"parameters +forward +all_gather x\d+ +shard", said)
    assert re.search(r"gradients +backward +reduce_scatter x\d+ +shard", said)
    assert "split along shard     100.00 % of the flops" in said
    assert "dry run: 8 ranks of 1 kinds\n  8 ranks as rank 0: " in said
    medium = "by shared memory"
    assert f"\nmessages: along tensor {medium}; along shard {medium}; along replicate {medium}\n" in said


def test_a_plan_says_what_ranks_talk_over_on_the_hosts_of_a_cluster(shoal, tiny, tmp_path):
    text = pathlib.Path("clusters/h100.toml").read_text()
    (tmp_path / "pairs.toml").write_text(text.replace("devices = 8", "devices = 2"))
    options = ["plan", tiny, "-n", 8, "--training.steps=20", *HYBRID, *TENSOR]
    said = shoal(*options, f"--profiling.cluster={tmp_path}/pairs.toml").stdout
    assert "\nmessages: along tensor by shared memory; along shard by Gloo; along replicate by Gloo\n" in said
    said = shoal(*options[:5], SHARD, f"--profiling.cluster={tmp_path}/pairs.toml").stdout
    assert "\nmessages: along shard by shared memory on each of 4 hosts, Gloo between them\n" in said
    said = shoal(*options, "--training.device=cuda").stdout
    assert "\nmessages: along tensor by NCCL; along shard by NCCL; along replicate by NCCL\n" in said
    (tmp_path / "few.toml").write_text(
        text.replace("devices = 8", "devices = 1").replace("count = 128", "count = 1")
    )
    refused = shoal(*options, f"--profiling.cluster={tmp_path}/few.toml")
    assert refused.returncode == 1
    assert "has 1 devices, and there are 8 ranks" in refused.stderr


@pytest.mark.parametrize("axes", ["shard x tensor", "stages x shard x tensor"])
def test_a_model_larger_than_any_memory_is_planned_for_a_thousand_ranks(shoal, axes):
    degrees = [SHARD, "--parallelism.tensor_parallel_degree=8", TENSOR[1]]
    if axes.startswith("stages"):
        degrees += ["--parallelism.pipeline_parallel_degree=16"]
        degrees += ["--parallelism.pipeline_parallel_schedule=interleaved_1f1b"]
    result = shoal("plan", "recipes/gpt3_175b.toml", "-n", 1024, *degrees, "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "model: gpt2, 174,604,345,344 parameters" in result.stdout
    assert "dry run: 1024 ranks" in result.stdout
    last = re.fullmatch(r"planned in (.*) s, (.*)(MiB|GiB) of memory", result.stdout.splitlines()[-1])
    assert float(last[1]) < 300
    assert last[3] == "MiB" or float(last[2]) < 8
