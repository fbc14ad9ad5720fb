# SPDX-License-Identifier: Apache-2.0
"""What may be said of the search for placements, what it says of itself, and what it refuses."""

import json
import re

import pytest

TENSOR = ["-n", 2, "--parallelism.tensor_parallel_degree=2"]
NUMBER = r"(\d\S*)"


def found(shoal, recipe, *options, ranks=TENSOR):
    """The lines about what was found, the heading first."""
    result = shoal("plan", recipe, *ranks, *options)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("placements over tensor: found"))
    end = next(i for i, line in enumerate(lines) if line.startswith("memory of a rank"))
    return lines[begin:end]


def refused(shoal, recipe, *options, ranks=TENSOR):
    result = shoal("plan", recipe, *ranks, *options)
    assert result.returncode in {1, 2}, result.stdout  # no way, or not well said
    return result.stderr


def milliseconds(line):
    return float(re.search(rf"{NUMBER} ms of a step depend on it", line)[1])


def test_each_class_of_layers_says_what_it_costs_and_what_the_next_best_would(shoal, tiny):
    heading, columns, *layers = found(shoal, tiny)
    assert columns.split() == "ms by layer work layouts memory how it lies; the next best".split()
    row = rf"  (\S+|\(the model\)) +{NUMBER} +{NUMBER} +{NUMBER} +(.*)"
    rows = [re.fullmatch(row, line.rstrip() + " ") for line in layers]
    assert all(rows), layers
    total = sum(float(each[i]) for each in rows for i in (2, 3, 4))
    assert total == pytest.approx(milliseconds(heading), rel=0.02)
    says = {each[1]: each[5].strip() for each in rows}
    first, next_best = says["transformer.h.*.mlp.c_fc"].split("; ")
    assert first == "bias S(0), weight S(1)"
    assert re.fullmatch(rf"(bias \S+, )?weight \S+: {NUMBER} more", next_best)
    assert "weight S(1)" not in next_best
    assert "; " not in says["transformer.ln_f"]  # whole, and never otherwise


def test_a_limit_that_is_too_low_is_refused_with_the_least(shoal, tiny):
    said = refused(shoal, tiny, "--planner.kept=1KiB")
    least = re.search(
        r"planner.kept is 1.0KiB \(1024 bytes\), and over 2 ranks of 'tensor' no placement leaves a rank "
        r"less than \S+ \((\d+) bytes\) of the model's parameters. Remedy: that much, or more ranks",
        said,
    )
    assert least, said
    found(shoal, tiny, f"--planner.kept={least[1]}B")
    assert "planner.kept is" in refused(shoal, tiny, f"--planner.kept={int(least[1]) - 1}B")


def test_of_two_axes_the_inner_one_is_found_first_and_steps_are_those_of_one_device(shoal, tiny):
    plan, saved = tiny.parent / "two.plan", tiny.parent / "saved.plan"
    plan.write_text("mesh outer=2 inner=2\n")
    # Three heads are left of six, which the outer axis shares two to one.
    options = ["-n", 4, "--model.n_head=6", "--model.n_embd=24", "--training.global_batch_size=2"]
    said = shoal("plan", tiny, *options, f"--plan={plan}", f"--save-plan={saved}")
    assert said.returncode == 0, said.stderr
    assert re.findall(r"^placements over (\w+): found; ", said.stdout, re.M) == ["inner", "outer"]
    assert re.findall(r"above the least possible of (.*) \(", said.stdout) == [
        "inner alone",
        "what inner leaves",
    ]
    assert re.findall(r"split along (\w+) +100.00 % of the flops", said.stdout) == ["outer", "inner"]
    again = shoal("plan", tiny, *options, f"--plan={saved}")
    assert again.returncode == 0, again.stderr
    for text in (said, again):
        assert (
            "\n  transformer.wte.weight                      [300, 24]         outer=S(0) inner=S(0)"
            in text.stdout
        )
    for file in (plan, saved):
        verified = shoal("verify", tiny, *options, f"--plan={file}", "--verify.steps=2")
        assert verified.returncode == 0, verified.stdout + verified.stderr


def test_two_axes_of_a_small_step_are_found_together_and_steps_are_those_of_one_device(shoal, tmp_path):
    plan, saved = tmp_path / "two.plan", tmp_path / "saved.plan"
    plan.write_text("mesh outer=2 inner=2\n")
    options = ["-n", 4, "--model.hidden=[64]", f"--job.dump_folder={tmp_path}/out"]
    said = shoal("plan", "recipes/mlp.toml", *options, f"--plan={plan}", f"--save-plan={saved}")
    assert said.returncode == 0, said.stderr
    assert re.findall(r"^placements over (.*): found together; ", said.stdout, re.M) == ["outer and inner"]
    assert re.search(r"% above the least possible \(\d+ variables", said.stdout)
    assert re.search(r"^  layers\.\* .* weight outer=S\(\d\) inner=S\(\d\)", said.stdout, re.M)
    assert "find inner\nfind outer\n" in saved.read_text()
    again = shoal("plan", "recipes/mlp.toml", *options, f"--plan={saved}")
    assert again.returncode == 0, again.stderr
    for file in (plan, saved):
        verified = shoal("verify", "recipes/mlp.toml", *options, f"--plan={file}", "--verify.steps=2")
        assert verified.returncode == 0, verified.stdout + verified.stderr


def test_an_lstm_is_cut_and_its_steps_in_float32_are_those_of_one_device(shoal, tmp_path):
    recipe = [
        "recipes/lstm.toml",
        "--model.hidden_size=64",
        "--model.embedding_size=32",
        "--training.seq_len=8",
    ]
    recipe += ["--model.vocab_size=300", "--model.dropout=0.3"]
    plan = shoal("plan", *recipe, *TENSOR)
    assert plan.returncode == 0, plan.stderr
    assert "split along tensor    100.00 % of the flops, 100.00 % of the parameters' bytes" in plan.stdout
    assert "mkldnn_rnn_layer" not in plan.stdout
    losses = []
    for name, ranks in (("one", ["-n", 1]), ("two", TENSOR)):
        folder = tmp_path / name
        steps = ["--training.steps=4", "--lr_scheduler.warmup_steps=0", "--metrics.log_freq=1"]
        run = shoal("train", *recipe, *ranks, *steps, "--validation.freq=0", f"--job.dump_folder={folder}")
        assert run.returncode == 0, run.stderr
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if "loss" in line])
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_a_search_without_time_says_so(shoal, tiny):
    said = refused(shoal, tiny, "--planner.budget=1e-9")
    assert (
        "no placement was found in 1e-09 s (planner.budget). Remedy: more, or 0: as many as it takes" in said
    )


def test_processes_with_a_budget_train_as_without(shoal, tiny):
    losses = []
    for budget in ("0", "60"):
        result = shoal("train", tiny, *TENSOR, f"--planner.budget={budget}", "--training.dtype=float64")
        assert result.returncode == 0, result.stderr
        lines = (tiny.parent / "out" / "metrics.jsonl").read_text().splitlines()
        losses.append([line["loss"] for line in map(json.loads, lines) if "loss" in line])
    assert losses[0] == losses[1]
    said = shoal("train", tiny, *TENSOR, "--planner.budget=1e-9")
    assert said.returncode == 1
    assert "no placement was found in 1e-09 s (planner.budget)" in said.stderr


def test_the_axis_cuts_the_batch_only_where_that_is_said(shoal, tiny, tmp_path):
    plan = tmp_path / "found.plan"
    kept = found(shoal, tiny, f"--save-plan={plan}")
    assert "planner" not in plan.read_text()
    free = found(shoal, tiny, "--planner.tensor_batch=true", f"--save-plan={plan}")
    assert milliseconds(free[0]) <= milliseconds(kept[0])
    assert "planner tensor_batch=true\n" in plan.read_text()
    text = plan.read_text()
    found(shoal, tiny, f"--plan={plan}", f"--save-plan={plan}")
    assert plan.read_text() == text
    assert "leave one of them out" in refused(shoal, tiny, f"--plan={plan}", "--planner.kept=1GiB")


ZERO = ["--parallelism.data_parallel_shard_degree=2", "--planner.zero=true"]


@pytest.mark.parametrize(
    ("ranks", "kept", "degrees"),
    [(2, "400KiB", []), (4, "200KiB", ["--parallelism.tensor_parallel_degree=2"])],
)
def test_what_a_rank_has_no_room_for_is_kept_in_parts(shoal, tmp_path, ranks, kept, degrees):
    small = ["--model.n_embd=48", "--model.vocab_size=300", "--model.n_layer=2", "--model.n_positions=16"]
    small += ["--training.seq_len=16", "--training.local_batch_size=2", "--training.global_batch_size=8"]
    words = ["recipes/gpt.toml", *small, "-n", ranks, *degrees, *ZERO, f"--planner.kept={kept}"]
    plan = tmp_path / "found.plan"
    said = shoal("plan", *words, "--training.dtype=float64", f"--save-plan={plan}")
    assert said.returncode == 0, said.stderr
    number, of = map(
        int, re.search(r"parameters that are kept in parts: (\d+) of (\d+)", said.stdout).groups()
    )
    assert 0 < number < of
    assert "zero shard stage=2 parts=" in plan.read_text()
    result = shoal("verify", *words, "--verify.steps=2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert float(re.search(r"largest error: (\S+), allowed", result.stdout)[1]) < 1e-9
    none = shoal("plan", *words, "--planner.kept=1KiB")
    assert re.search(r"no placement leaves a rank less than \S+ \(\d+ bytes\)", none.stderr)


def test_placements_are_found_for_the_machines_of_a_file(shoal, tiny, tmp_path):
    plan = tmp_path / "found.plan"
    found(shoal, tiny, "--planner.cluster=clusters/h100.toml", f"--save-plan={plan}")
    line = next(line for line in plan.read_text().splitlines() if line.startswith("planner"))
    rates = dict(word.split("=") for word in line.split()[1:])
    assert float(rates["link"]) == pytest.approx(450e9)
    assert float(rates["latency"]) == pytest.approx(5e-6)
    # Over two hosts of a device each it is the network's.
    text = open("clusters/h100.toml").read().replace("devices = 8", "devices = 1")
    (tmp_path / "thin.toml").write_text(text)
    found(shoal, tiny, f"--planner.cluster={tmp_path}/thin.toml", f"--save-plan={plan}")
    assert float(re.search(r"latency=(\S+)", plan.read_text())[1]) == pytest.approx(10e-6)
    (tmp_path / "few.toml").write_text(text.replace("count = 128", "count = 1"))
    assert "has 1 devices, and there are 2 ranks" in refused(
        shoal, tiny, f"--planner.cluster={tmp_path}/few.toml"
    )
    assert "no/where.toml" in refused(shoal, tiny, "--planner.cluster=no/where.toml")


def test_what_is_said_of_a_search_that_is_not_made_is_refused(shoal, tiny):
    said = refused(shoal, tiny, "--planner.kept=1GiB", ranks=["-n", 2])
    assert "planner: nothing is found on 'replicate=2 shard=1 tensor=1'" in said
    assert "Remedy: a tensor degree" in said


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_for_its_machines_it_is_never_slower_than_a_plan_by_hand(shoal, model):
    """By what is simulated of both; for other machines it may be."""
    on = [f"--{key}.cluster=clusters/h100.toml" for key in ("planner", "profiling")]
    untied = ["--model.tie_word_embeddings=false"] if model == "llama" else []
    for plan in ("tensor", "sequence"):
        by_hand = f"recipes/plans/{'gpt2' if model == 'gpt' else model}_{plan}.plan"
        result = shoal("plan", f"recipes/{model}.toml", *TENSOR, *on, *untied, "--diff", "found", by_hand)
        assert result.returncode == 0, result.stderr
        said = re.search(rf"time of a step, simulated +{NUMBER} ms +{NUMBER} ms", result.stdout)
        assert float(said[1]) <= float(said[2]), result.stdout
