"""The built command as a user meets it: what it prints, and what its exit code says."""

import json

import pytest

FEW_STEPS = ["--training.steps=3", "--lr_scheduler.warmup_steps=1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "--help"),
        (["train"], "required"),
        (["train", "no/such.toml"], "no/such.toml"),
        (["train", "recipes/mlp.toml", "--training.stepz=3"], "did you mean training.steps?"),
        (["train", "recipes/mlp.toml", "--training.steps=many"], "training.steps"),
    ],
)
def test_wrong_use_exits_with_2_and_names_the_thing(run, arguments, said):
    result = run("bin/shoal", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize("verb", ["train", "capture"])
def test_help_names_every_verb_and_each_has_its_own(run, verb):
    assert f"  {verb} " in run("bin/shoal", "--help").stdout
    result = run("bin/shoal", verb, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "recipe" in result.stdout.lower()


def test_training_leaves_metrics_and_says_where(run, tmp_path):
    folder = tmp_path / "out"
    result = run("bin/shoal", "train", "recipes/mlp.toml", *FEW_STEPS, f"--job.dump_folder={folder}")
    assert result.returncode == 0, result.stderr
    assert str(folder) in result.stdout.splitlines()[-1]
    [metrics] = folder.rglob("*.jsonl")
    assert any("loss" in json.loads(line) for line in metrics.read_text().splitlines())


def test_capture_prints_a_graph_with_its_results(run):
    result = run("bin/shoal", "capture", "recipes/mlp.toml")
    assert result.returncode == 0
    assert result.stdout.startswith("graph captured\n")
    assert "\nreturn loss " in result.stdout
