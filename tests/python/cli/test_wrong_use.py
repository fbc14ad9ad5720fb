# SPDX-License-Identifier: Apache-2.0
"""Every wrong command line and recipe gets one line that names the thing, and exit code 2."""

import pytest
import torch

OVERRIDES = [
    ("--training.stepz=3", "there is no key training.stepz; did you mean training.steps?"),
    ("--trainin.steps=3", "there is no key trainin.steps; did you mean training.steps?"),
    ("--model.layers=[1]", "there is no key model.layers of the model gpt2; did you mean model.n_layer?"),
    ("--training.steps=many", 'training.steps: wants an integer, got the string "many"'),
    ("--training.steps=1.5", "training.steps: wants an integer, got the number 1.5"),
    ("--training.steps=true", "training.steps: wants an integer, got the boolean true"),
    ("--training.steps=[1]", "training.steps: wants an integer, got a list"),
    ("--training.steps=0", "training.steps: 0 is not between 1 and 1e+12"),
    ("--optimizer.lr=fast", 'optimizer.lr: wants a number, got the string "fast"'),
    ("--optimizer.lr=nan", "optimizer.lr: nan is not between 0 and 1000"),
    ("--optimizer.nesterov=1", "optimizer.nesterov: wants true or false, got the integer 1"),
    ("--optimizer.name=AdamX", 'optimizer.name: there is no "AdamX"; did you mean "Adam"?'),
    ("--sample.prompt=7", "sample.prompt: wants a string, got the integer 7"),
]

TOGETHER = [
    ("--model.name=gtp2", 'model.name: there is no model "gtp2"; did you mean "gpt2"?'),
    ("--model.flavor=125M", 'model.flavor: gpt2 has no flavor "125M"; did you mean "124M"?'),
    ("--model.n_head=5", "model.n_embd is 16, not a multiple of model.n_head, 5"),
    ("--training.seq_len=17", "training.seq_len is 17, more than model.n_positions, 16"),
    ("--dataset.name=bytes", 'model.name gpt2 learns from dataset.name "text"'),
    ("--lr_scheduler.warmup_steps=5", "lr_scheduler.warmup_steps is 5, more than training.steps, 4"),
    (
        "--optimizer.nesterov=true",
        "optimizer.nesterov looks ahead along a momentum, but optimizer.momentum is 0",
    ),
]


@pytest.mark.parametrize(("override", "message"), OVERRIDES)
def test_a_wrong_override_is_named(shoal, tiny, override, message):
    result = shoal("train", tiny, override)
    assert (result.returncode, result.stderr) == (2, f"shoal: {override}: {message}\n")


@pytest.mark.parametrize(("override", "message"), TOGETHER)
def test_values_that_do_not_go_together_are_named(shoal, tiny, override, message):
    result = shoal("train", tiny, override)
    assert (result.returncode, result.stderr) == (2, f"shoal: {tiny}: {message}\n")


@pytest.mark.parametrize(
    "override", ["extra", "--steps=1", "--training.steps", "--.steps=1", "--training.=1"]
)
def test_what_is_no_override_is_named(shoal, tiny, override):
    result = shoal("train", tiny, override)
    assert (result.returncode, result.stderr) == (
        2,
        f"shoal: {override}: an override reads --section.key=value\n",
    )


LINES = [
    ("steps = 4", "stepz = 4", "there is no key training.stepz; did you mean training.steps?"),
    ("steps = 4", 'steps = "4"', 'training.steps: wants an integer, got the string "4"'),
    ("seq_len = 16\nsteps = 4", "seq_len = 16\nsteps = 1979-05-27", "training.steps: wants an integer, got "),
    ("steps = 4", "steps = ", None),
]


@pytest.mark.parametrize(("old", "new", "message"), LINES)
def test_a_wrong_line_of_a_recipe_is_named(shoal, tiny, old, new, message):
    text = tiny.read_text().replace(old, new, 1)
    tiny.write_text(text)
    changed = next(line for line, row in enumerate(text.split("\n"), 1) if row == new.split("\n")[-1])
    result = shoal("train", tiny)
    assert result.returncode == 2
    assert result.stderr.startswith(f"shoal: {tiny}:{changed}: {message or ''}")
    assert result.stderr.count("\n") == 1


def test_a_key_outside_any_section_is_named(shoal, tiny):
    tiny.write_text("steps = 4\n" + tiny.read_text())
    result = shoal("train", tiny)
    assert result.returncode == 2
    assert result.stderr.startswith(f"shoal: {tiny}:1: there is no key steps; did you mean ")


def test_a_recipe_that_is_not_there_is_named(shoal):
    result = shoal("train", "nowhere.toml")
    assert (result.returncode, result.stderr) == (2, "shoal: nowhere.toml: there is no such recipe\n")


def test_a_verb_that_is_not_there_gets_the_nearest(shoal):
    result = shoal("trian", "x")
    assert (result.returncode, result.stderr) == (
        2,
        "shoal: there is no verb trian; did you mean train? shoal --help names all\n",
    )


@pytest.mark.parametrize("ranks", [0, -3])
@pytest.mark.parametrize(
    ("command", "option"), [("train", "--nproc-per-node"), ("verify", "--ranks"), ("plan", "--ranks")]
)
def test_fewer_ranks_than_one_are_refused(shoal, tiny, command, option, ranks):
    result = shoal(command, tiny, "-n", str(ranks))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{option}: {ranks} ranks; wanted 1 or more\n")


@pytest.mark.parametrize("arguments", [[], ["train"], ["capture"], ["--nothing"]])
def test_an_incomplete_command_is_wrong_use(shoal, arguments):
    result = shoal(*arguments)
    assert result.returncode == 2
    assert result.stdout + result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("ranks", [[], ["-n", "2"]])
def test_a_device_that_is_not_there_is_named_once(shoal, tiny, ranks):
    result = shoal("train", tiny, *ranks, "--training.device=cuda")
    assert result.returncode == 1
    assert result.stderr.startswith("shoal: training.device is cuda, and LibTorch ")
    assert "Remedy: training.device=cpu" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_plan_for_another_machine_s_devices_is_made(shoal, tiny):
    assert shoal("plan", tiny, "-n", "2", "--training.device=cuda").returncode == 0


def test_a_limit_is_of_main_memory(shoal, tiny):
    result = shoal("plan", tiny, "-n", "2", "--training.device=cuda", "--memory.limit=2GiB")
    assert result.returncode != 0
    assert "memory.limit is 2GiB of main memory, and training.device is cuda" in result.stderr


def test_verify_is_of_the_processor(shoal, tiny):
    result = shoal("verify", tiny, "-n", "2", "--training.device=cuda")
    assert result.returncode != 0
    assert "verify compares ranks that are threads of the processor" in result.stderr
