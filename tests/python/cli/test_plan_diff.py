# SPDX-License-Identifier: Apache-2.0
"""shoal plan --diff: what differs between two plans of a recipe, and what is refused."""

import re

import pytest

TENSOR = ["-n", 2, "--parallelism.tensor_parallel_degree=2"]
BY_HAND = "recipes/plans/gpt2_tensor.plan"


def lines_of(text, title):
    """The lines of one table."""
    lines = iter(text.splitlines())
    assert any(line.startswith(title) for line in lines), text
    rows = []
    for line in lines:
        if not line.startswith("  "):
            break
        rows.append(line)
    return rows


def total(text, name):
    [line] = [line for line in lines_of(text, "totals of a step:") if line.startswith(f"  {name} ")]
    return re.split(r"  +", line.strip())[1:]


def report_of(shoal, *words):
    result = shoal("plan", *words)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_what_is_found_differs_from_a_plan_by_hand_as_their_reports_do(shoal, tiny):
    text = report_of(shoal, tiny, *TENSOR, "--diff", "found", BY_HAND)
    found, by_hand = report_of(shoal, tiny, *TENSOR), report_of(shoal, tiny, *TENSOR, f"--plan={BY_HAND}")
    assert "are alike" not in text
    assert "other lines" not in text  # what the plan says of layouts is among the layers
    assert re.search(r"^A  found +replicate=1 shard=1 tensor=2$", text, re.M)
    assert re.search(rf"^B  {BY_HAND} +replicate=1 shard=1 tensor=2$", text, re.M)
    assert max(map(len, text.splitlines())) <= 120
    in_all = [re.search(r"in all (\S+)", report)[1] for report in (found, by_hand)]
    assert total(text, "bytes that a rank sends")[:2] == in_all
    memory = [re.search(r"memory of a rank: (\S+)", report)[1] for report in (found, by_hand)]
    assert total(text, "memory of a rank, at most")[:2] == memory
    split = [re.search(r"split along tensor +(\S+ %)", report)[1] for report in (found, by_hand)]
    assert total(text, "flops split along tensor")[:2] == split

    # A parameter is there if its line of the reports is another.
    def parameters(report):
        rows = lines_of(report, "parameters, as they are kept")
        return {tuple(re.split(r"  +", row.strip())) for row in rows}

    differing = {(name, shape) for name, shape, _ in parameters(found) ^ parameters(by_hand)}
    rows = [re.split(r"  +", row.strip()) for row in lines_of(text, "parameters, as they are kept")]
    assert {(name, shape) for name, shape, *_ in rows} == differing
    assert {(name, shape, a) for name, shape, a, _ in rows} == parameters(found) - parameters(by_hand)
    assert {(name, shape, b) for name, shape, _, b in rows} == parameters(by_hand) - parameters(found)


def test_equal_plans_are_alike(shoal, tiny, tmp_path):
    saved = tmp_path / "found.plan"
    report_of(shoal, tiny, *TENSOR, f"--save-plan={saved}")
    for plans in [("found", "found"), (BY_HAND, BY_HAND), (saved, saved)]:
        text = report_of(shoal, tiny, *TENSOR, "--diff", *plans)
        assert text.splitlines()[3] == "the plans are alike"
    # A saved plan has where parameters lie; of ops that take as long either way others may be found.
    text = report_of(shoal, tiny, *TENSOR, "--diff", "found", saved)
    assert "parameters, as they are kept" not in text


def test_settings_and_other_meshes_are_differences(shoal, tiny, tmp_path):
    buckets, data = tmp_path / "buckets.plan", tmp_path / "data.plan"
    buckets.write_text("mesh replicate=2\nbuckets 1KiB\n")
    data.write_text("mesh replicate=2\n")
    text = report_of(shoal, tiny, "-n", 2, "--diff", data, buckets)
    assert lines_of(text, "other lines of the plans:") == ["  B  buckets 1KiB"]
    assert lines_of(text, "collectives of a step")
    data.write_text("mesh dp=2\nbatch dp\n")
    text = report_of(shoal, tiny, "-n", 2, "--diff", data, buckets)
    assert total(text, "flops split along dp") == ["100.00 %", "-"]
    assert total(text, "flops split along replicate") == ["-", "100.00 %"]


def test_micro_batches_count_as_often_as_they_run(shoal, tiny):
    words = [*TENSOR, "--training.global_batch_size=6", "--diff", "found", BY_HAND]
    text = report_of(shoal, tiny, *words)
    counts = {
        int(number)
        for row in lines_of(text, "collectives of a step")
        if row.startswith("  activations")
        for number in re.findall(r" x(\d+)", row)
    }
    assert counts
    assert all(count % 3 == 0 for count in counts)


def test_a_step_is_timed_where_a_cluster_is_known(shoal, tiny):
    words = [*TENSOR, "--training.steps=20", "--diff", "found", BY_HAND]
    assert "time of a step" not in report_of(shoal, tiny, *words)
    cluster = "--profiling.cluster=clusters/h100.toml"
    text = report_of(shoal, tiny, *words, cluster)
    simulated = shoal("simulate", tiny, *TENSOR, f"--plan={BY_HAND}", "--cluster=clusters/h100.toml").stdout
    assert total(text, "time of a step, simulated")[1] == re.search(r"step (\S+ ms)", simulated)[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--diff", "found"],
            "--diff compares two plans, and there is only found. Remedy: a second file, or the word found",
        ),
        (
            ["--diff", "no/such.plan", "found"],
            "--diff: there is no file no/such.plan; a plan is a file, or the word found",
        ),
        (
            ["--diff", "found", "recipes"],
            "--diff: there is no file recipes; a plan is a file, or the word found",
        ),
        (
            ["--diff", "found", BY_HAND, f"--plan={BY_HAND}"],
            "--plan is not for --diff, which names both plans",
        ),
        (
            ["--diff", "found", BY_HAND, f"--parallelism.plan={BY_HAND}"],
            "--plan is not for --diff, which names both plans",
        ),
    ]
    + [
        (
            ["--diff", "found", BY_HAND, option],
            "{name} is of one plan, and --diff compares two. Remedy: without {name}, or by itself with "
            "--plan",
        )
        for option in [
            "--dry-run",
            "--measure",
            "--picture=a.html",
            "--print-after=place",
            "--save-plan=a.plan",
        ]
    ],
    ids=str,
)
def test_what_a_diff_cannot_be_of_is_refused(shoal, tiny, words, message):
    result = shoal("plan", tiny, *TENSOR, *words)
    name = words[-1].partition("=")[0]
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"shoal: {message.format(name=name)}\n"


def test_a_plan_that_does_not_fit_is_named(shoal, tiny):
    result = shoal("plan", tiny, *TENSOR, "--diff", "found", "recipes/plans/llama_tensor.plan")
    assert (result.returncode, result.stdout) == (2, "")
    assert "recipes/plans/llama_tensor.plan" in result.stderr
    assert "this model has no parameter model.embed_tokens" in result.stderr
