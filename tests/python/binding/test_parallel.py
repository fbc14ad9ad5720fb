# SPDX-License-Identifier: Apache-2.0
"""Trainers of several processes: what they compute is what one of them alone does."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
from built import BUILD, ROOT

import shoal

HERE = pathlib.Path(__file__).parent
SCRIPT = """
import shoal, torch

def make_trainer(parallelism):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.2), torch.nn.Linear(6, 2)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    return shoal.Trainer(model, optimizer, lambda model, x: model(x).square().mean(), parallelism=parallelism)

def batch(step):
    torch.manual_seed(step)
    return torch.randn(7, 4).double()
"""


def run(*command, cwd=HERE, limit=120):
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(BUILD / "python")},
        capture_output=True,
        text=True,
        timeout=limit,
    )


def run_ranks(ranks, *command, **options):
    launcher = [BUILD / "shoal", "run", "-n", str(ranks), "--limit=60"]
    return run(*launcher, sys.executable, *command, **options)


def verify(folder, script, *options):
    (folder / "script.py").write_text(script)
    return run(sys.executable, "-m", "shoal.verify", "script.py", *options, cwd=folder)


@pytest.mark.parametrize("ranks", [2, 4])
def test_hugging_face_models_train_in_stages_as_eager_pytorch_does(ranks):
    done = run_ranks(ranks, "pipeline_on_ranks.py", limit=300)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("in stages: equal") == 4, done.stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_published_annotated_models_train_as_eager_pytorch_does(ranks):
    done = run_ranks(ranks, "scopes_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    assert "Bert in two stages, the second from upper on: equal" in done.stdout, done.stdout
    assert "T5 in two stages, the second from +1 on: equal" in done.stdout, done.stdout
    cut = "['parameter classes.bias tensor=S(0)', 'parameter classes.weight tensor=S(0)']"
    assert f"split {cut} and 100.00 % of the work, outside tensor=S(0) : equal" in done.stdout, done.stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_models_that_nobody_wrote_a_plan_for_are_tensor_parallel_by_their_degree_alone(ranks):
    done = run_ranks(ranks, "tensor_on_ranks.py", limit=400)
    assert done.returncode == 0, done.stderr[-5000:]
    line = r"(\w+): equal, ([\d.]+) % of the flops and ([\d.]+) % of the bytes are split, busiest ([\d.]+)"
    shares = {name: [float(number) for number in rest] for name, *rest in re.findall(line, done.stdout)}
    assert len(shares) == 17, done.stdout
    assert all(flops >= 99 for flops, _, _ in shares.values()), done.stdout
    assert all(held >= 95 for name, (_, held, _) in shares.items() if name != "resnet"), done.stdout
    assert all(busiest <= 1.1 for _, _, busiest in shares.values()), done.stdout


def test_placements_are_found_over_two_axes():
    done = run_ranks(4, "tensor_on_ranks.py", "two axes", limit=400)
    assert done.returncode == 0, done.stderr[-5000:]
    shares = re.findall(r"\w+: equal, ([\d.]+) % of the flops", done.stdout)
    assert len(shares) == 7, done.stdout
    assert all(float(share) >= 99 for share in shares), done.stdout


@pytest.mark.skipif(
    not os.environ.get("SHOAL_WHOLE_MATRIX"), reason="minutes; the same over two axes of 2 is above"
)
def test_placements_are_found_over_four_ranks():
    done = run_ranks(4, "tensor_on_ranks.py", "four", limit=900)
    assert done.returncode == 0, done.stderr[-5000:]
    shares = dict(re.findall(r"(\w+): equal, ([\d.]+) % of the flops", done.stdout))
    assert len(shares) == 17, done.stdout
    assert all(float(shares[name]) >= 99 for name in ("gpt2", "llama", "bert", "t5", "vit", "mixtral")), (
        shares
    )
    assert float(shares["resnet"]) >= 95, shares


@pytest.mark.parametrize("ranks", [2, 4])
def test_hugging_face_models_train_on_ranks_as_on_one_device(ranks):
    done = run_ranks(ranks, "train_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    lines = done.stdout.splitlines()
    assert sum(line.endswith(f"{ranks} ranks: equal") for line in lines) == 9, done.stdout
    assert lines[-1] == "[0] all is well"


def test_outside_of_a_job_there_is_one_rank_and_a_trainer_works():
    assert (shoal.rank(), shoal.world_size()) == (0, 1)
    assert shoal.samples_of(7) == slice(0, 7)
    model = torch.nn.Linear(4, 3)
    trainer = shoal.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, x: model(x).square().mean(),
        parallelism=shoal.Parallelism(shard=-1),
    )
    x = torch.randn(5, 4)
    assert trainer.step(x).loss > trainer.step(x).loss
    trainer.materialize()


def test_a_mesh_of_other_names_stands_in_place_of_the_degrees(tmp_path):
    named = shoal.Parallelism(mesh={"dp": -1}, batch_axes=["dp"])
    assert repr(named) == "Parallelism(mesh='dp=-1', zero_stage=-1)"
    with pytest.raises(shoal.InvalidInput, match="a mesh is given, 'dp=2', and degrees too"):
        shoal.Parallelism(mesh={"dp": 2}, shard=2)
    (tmp_path / "my.plan").write_text("mesh dp=2\nbatch dp\nzero dp stage=2\n")
    assert shoal.Parallelism(plan=tmp_path / "my.plan").zero_stage == 2
    assert shoal.Parallelism(plan=tmp_path / "my.plan", zero_stage=1).zero_stage == 1


def test_what_cannot_be_is_said_before_anything_is_joined():
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        shoal.InvalidInput, match="replicate 1 x shard 4 x tensor 1 are 4 ranks, and there are 1"
    ):
        shoal.Trainer(model, optimizer, parallelism=shoal.Parallelism(replicate=1, shard=4))
    with pytest.raises(shoal.InvalidInput, match="the limit is 0 s"):
        shoal.Parallelism(limit=0)
    with pytest.raises(
        shoal.InvalidInput, match="plan:1: 'parametr' is no line of a plan; did you mean 'parameter'"
    ):
        shoal.Parallelism(plan="parametr h.*.weight tensor=S(0)")


TORCHRUN = """
import script, shoal, torch

parallelism = shoal.Parallelism(shard=2)
together, alone = script.make_trainer(parallelism), script.make_trainer(None)
for step in range(2):
    whole = script.batch(step)
    parts = whole[:1], whole[1:]  # of sizes that nobody would cut
    result, wanted = together.step(parts[shoal.rank()]), alone.step(whole)
    assert abs(result.loss - wanted.loss) < 1e-12 * wanted.loss
print("well", flush=True)
"""


def test_ranks_that_torchrun_starts_train_and_their_parts_may_be_uneven(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.replace("LR", "0.01"))
    (tmp_path / "main.py").write_text(TORCHRUN)
    done = run(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "main.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("well") == 2


def test_the_example_trains_and_saves(tmp_path):
    shutil.copy(ROOT / "README.md", tmp_path)
    done = run_ranks(2, ROOT / "examples" / "parallel.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(re.fullmatch(r"\[0\] loss (\S+)", done.stdout.splitlines()[0])[1]) < 4
    assert (tmp_path / "outputs/gpt2-bytes/model.safetensors").exists()


def test_verify_finds_the_same_where_it_is(tmp_path):
    done = verify(tmp_path, SCRIPT.replace("LR", "0.01"), "-n", "2", "--shard=2")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert re.fullmatch(
        r"largest error (0|\d\.\de-1[0-9], of .*); 1e-09 is allowed", done.stdout.splitlines()[-1]
    )


def test_verify_names_the_first_value_that_differs(tmp_path):
    script = SCRIPT.replace("LR", "0.01 if parallelism is None else 0.02")
    done = verify(tmp_path, script, "-n", "2", "--steps=2")
    assert done.returncode == 1, done.stderr[-3000:]
    *_, first, last = done.stdout.splitlines()
    assert first.startswith(
        "the first that differs: parameter or buffer 0.weight, after step 0, on rank 0, by "
    )
    assert last.startswith("largest error ")


DRAWS = """
import shoal, torch
import torch.nn.functional as F

def mixup(model, x):
    weight = torch.distributions.Beta(0.4, 0.4).sample().double()
    partner = torch.randperm(len(x))
    output = model(weight * x + (1 - weight) * x[partner])
    noise = torch.empty_like(output).log_normal_() + torch.empty_like(output).geometric_(0.5)
    return (output * noise - x[partner, :2]).square().mean()

def make_trainer(parallelism):
    torch.manual_seed(1)
    layers = torch.nn.Linear(4, 6), torch.nn.RReLU(0.1, 0.9), torch.nn.Linear(6, 2)
    model = torch.nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return shoal.Trainer(model, optimizer, mixup, parallelism=parallelism)

def batch(step):
    torch.manual_seed(step)
    return torch.randn(7, 4).double()
"""


def test_all_ranks_draw_what_one_device_does(tmp_path):
    done = verify(tmp_path, DRAWS, "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_verify_says_what_the_script_lacks(tmp_path):
    done = verify(tmp_path, "def make_trainer(parallelism): pass", "-n", "2")
    assert done.returncode == 2
    assert "script.py defines no function batch; it has to define " in done.stderr


def test_samples_may_lie_in_another_dim_and_ranks_pad_alike():
    done = run_ranks(2, "batches_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("all is well") == 2


@pytest.mark.parametrize(
    ("rank_1", "told"),
    [
        ("trainer.evaluate(x)", "rank 0 has 'a call of step()', rank 1 has 'a call of evaluate()'"),
        ("trainer.save('never')", "this rank is in s"),
        (
            "torch.set_default_dtype(torch.float64); trainer.step(x)",
            "rank 0 has 'default dtype: Float', rank 1 has 'default dtype: Double'",
        ),
    ],
)
def test_ranks_that_do_different_things_are_told_in_words_of_the_program(rank_1, told):
    script = (
        "import torch, shoal\n"
        "model, x = torch.nn.Linear(2, 1), torch.ones(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loss_of = lambda model, x: model(x).mean()\n"
        "trainer = shoal.Trainer(model, optimizer, loss_of, parallelism=shoal.Parallelism(shard=2))\n"
        "try:\n"
        "    if shoal.rank() == 0:\n"
        "        trainer.step(x)\n"
        "    else:\n"
        f"        {rank_1}\n"
        "except shoal.InvalidInput as error:\n"
        "    print('told:', error)\n"
    )
    done = run_ranks(2, "-c", script)
    lines = [line for line in done.stdout.splitlines() if "told:" in line]
    assert len(lines) == 2, done.stdout + done.stderr
    assert all(told in line for line in lines), lines
