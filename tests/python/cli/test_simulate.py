# SPDX-License-Identifier: Apache-2.0
"""shoal simulate: what a recipe's step and a schedule come to, and what is refused; shoal calibrate."""

import json
import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs" / "pipelines.md"

# The 1.5B model of Qi et al., arXiv:2401.10241, table 9.
PUBLISHED = ["--stages=8", "--microbatches=24", "--times=18.522,18.086,9.337,0.601"]

ZB_H1 = """\
zb_h1: 8 stages on 8 ranks, 24 micro-batches
step 1310.405 ms, bubble rate 0.1585

rank   bubble_ms    rate  activations: for backward, for weight gradients alone
   0     207.725  0.1585            8             8                          0
   1     179.252  0.1398            8             7                          1
   2     150.779  0.1203            8             6                          2
   3     122.306  0.0998            8             5                          3
   4      93.833  0.0784            8             4                          4
   5      65.360  0.0560            8             3                          5
   6      36.887  0.0324            8             2                          6
   7       8.414  0.0076            8             1                          7
"""

SMALL = ["--stages=4", "--microbatches=2"]

REFUSED = [
    (
        ["--schedule=2f2b", *SMALL],
        "there is no schedule '2f2b'; there are gpipe, looped_bfs, 1f1b, eager_1f1b, interleaved_1f1b, "
        "zb_h1, zb_h2, zbv, dualpipev",
    ),
    (["--stages=4"], "--stages and --microbatches say how large the pipeline is; both are needed"),
    (["--stages=4", "--microbatches=-2"], "--microbatches is -2, not 1 or more"),
    (
        ["--schedule=zbv", "--stages=7", "--microbatches=2"],
        "--stages is 7, not a multiple of the 2 stages that zbv has on a rank",
    ),
    (["--schedule=zbv", *SMALL, "--stages-per-rank=1"], "zbv: 1 stages a rank; it has 2"),
    (["--stages=2000", "--microbatches=2000"], "--stages times --microbatches is 4000000, more than 1000000"),
    (["--stages=2000", "--microbatches=1"], "--stages times itself is 4000000, more than 1000000"),
    (["--csv=a.csv", "--schedule=gpipe"], "--schedule is not for --csv, whose file is one"),
    (["--csv=no/such.csv"], "cannot read no/such.csv: No such file or directory"),
    (
        ["--csv=no/such.csv", "--stages=4"],
        "--stages and --stages-per-rank are not for --csv, whose file says them",
    ),
] + [
    (
        [*SMALL, f"--times={times}"],
        f"--times is '{times}', not F,I,W,TRANSFER in milliseconds from 0 to 1000000, as in "
        "18.522,18.086,9.337,0.601",
    )
    for times in ["1,2,3", "1,2,3,-1", "1,2,3,4,5", "1,2,3,4x", "nan,1,1,1", "1e7,1,1,1"]
]
REFUSED.append(
    (
        [*SMALL, "--times=1e-7,1,1,0"],
        "--times is '1e-7,1,1,0', and time is counted in nanoseconds, 0.000001 ms",
    )
)


def test_the_published_bubble_rates_are_printed(shoal):
    result = shoal("simulate", "--schedule=zb_h1", *PUBLISHED)
    assert (result.returncode, result.stdout, result.stderr) == (0, ZB_H1, "")
    assert "bubble rate 0.2431\n" in shoal("simulate", "--schedule=1f1b", *PUBLISHED).stdout


def test_a_rank_may_have_more_stages(shoal):
    sizes = ["--stages=12", "--stages-per-rank=3", "--microbatches=8"]
    result = shoal("simulate", "--schedule=interleaved_1f1b", *sizes)
    assert result.returncode == 0
    assert result.stdout.startswith("interleaved_1f1b: 12 stages on 4 ranks, 8 micro-batches\nstep ")


def test_what_a_schedule_cannot_do_at_a_size_is_printed(shoal):
    result = shoal("simulate", "--schedule=dualpipev", *SMALL)
    assert result.returncode == 0
    assert result.stdout.startswith(
        "dualpipev: 4 stages on 2 ranks, 2 micro-batches\n"
        "dualpipev: fewer micro-batches than fill its ranks (2 of 4): they wait for each other\n"
    )


def test_a_schedule_that_was_saved_is_played_as_before_and_with_fewer_microbatches(shoal, tmp_path):
    path = tmp_path / "saved.csv"
    written = shoal("simulate", "--schedule=zb_h1", *PUBLISHED, f"--save={path}")
    times = PUBLISHED[-1]
    read = shoal("simulate", f"--csv={path}", times)
    assert written.returncode == read.returncode == 0, written.stderr + read.stderr
    assert read.stdout == written.stdout.replace("zb_h1", str(path), 1)
    fewer = shoal("simulate", f"--csv={path}", times, "--microbatches=12").stdout.splitlines()
    fresh = shoal("simulate", "--schedule=zb_h1", "--stages=8", "--microbatches=12", times)
    assert fewer[1] == f"schedule {path}: of its 24 micro-batches the first 12"
    assert fewer[2:] == fresh.stdout.splitlines()[1:]


def test_a_file_that_cannot_run_so_many_microbatches_says_how_many_it_can(shoal, tmp_path):
    path = tmp_path / "two.csv"
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    result = shoal("simulate", f"--csv={path}", "--microbatches=3")
    said = f"shoal: schedule {path}: it has no 3 micro-batches; 2 is the nearest that it can run\n"
    assert (result.returncode, result.stderr) == (2, said)
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1B1,1F1\n")
    result = shoal("simulate", f"--csv={path}")
    said = (
        f"shoal: schedule {path}: row 1, rank 0, action 4 '0B1': waits for 1I1 or 1B1 for ever; so does "
        "rank 1 at 1B1 for 1F1; of 2 micro-batches it can run the first 1\n"
    )
    assert (result.returncode, result.stderr) == (2, said)


def test_the_timeline_is_a_page_of_its_own(shoal, tmp_path):
    path = tmp_path / "a.html"
    assert shoal("simulate", *SMALL, f"--timeline={path}").returncode == 0
    page = path.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert '"0F0"' in page and '"3B1"' in page


def test_the_table_of_schedules_is_what_is_printed(shoal):
    rows = re.findall(r"^\| `(\w+)` \| (\d).*? \| (\d+) ms \| ([\d.]+) \| (\d+) \|", DOCS.read_text(), re.M)
    assert len(rows) == 9
    for schedule, stages, step, rate, activations in rows:
        times = "--times=2,2,2,0" if stages == "1" else "--times=1,1,1,0"
        sizes = [f"--stages={4 * int(stages)}", "--microbatches=16", times]
        said = shoal("simulate", f"--schedule={schedule}", *sizes).stdout.splitlines()
        assert said[1] == f"step {step}.000 ms, bubble rate {rate}", schedule
        assert max(int(line.split()[3]) for line in said[-4:]) == int(activations), schedule


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_cannot_be_is_named(shoal, arguments, message):
    result = shoal("simulate", *arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"shoal: {message}\n")


def test_a_page_that_cannot_be_written_is_a_failure(shoal):
    result = shoal("simulate", *SMALL, "--timeline=/no/such/a.html")
    assert result.returncode == 1
    assert "cannot write /no/such/a.html: No such file or directory\n" in result.stderr


GPT = ["recipes/gpt.toml", "--model.n_layer=2"]
ONE_HOST = """
[kinds.small]
memory = "1 GiB"
memory_bandwidth = "10 GB/s"
kernel_floor = "1 us"
[kinds.small.float32]
peak = "100 GFLOP/s"
[[hosts]]
kind = "small"
devices = 4
[links.devices]
latency = "1 us"
bandwidth = "1 GB/s"
overlaps = {overlaps}
"""


def milliseconds(said, what):
    return float(re.search(rf"{what} ([\d.]+) ms", said)[1])


@pytest.mark.parametrize("path", sorted((ROOT / "clusters").glob("*.toml")), ids=lambda path: path.stem)
def test_clusters_that_are_shipped_play(shoal, path):
    strategy = [
        "--parallelism.data_parallel_shard_degree=8",
        "--parallelism.data_parallel_replicate_degree=2",
    ]
    result = shoal("simulate", *GPT, "-n", "16", f"--cluster={path}", *strategy)
    assert result.returncode == 0, result.stderr
    assert f"{path}: 16 devices on 2 hosts, replicate=2 shard=8, 1 micro-batch\n" in result.stdout
    assert milliseconds(result.stdout, "step") > 0
    assert re.search(r"tokens a second, MFU \d+\.\d %\n", result.stdout)


@pytest.mark.parametrize(
    "strategy",
    [
        [],
        ["--parallelism.data_parallel_shard_degree=-1"],
        ["--parallelism.tensor_parallel_degree=2", "--training.global_batch_size=48"],
        ["--parallelism.pipeline_parallel_degree=2", "--parallelism.data_parallel_shard_degree=2"],
    ],
    ids=["data", "ZeRO-3", "data and tensor by micro-batches", "pipeline and ZeRO-3"],
)
def test_a_recipe_plays(shoal, tmp_path, strategy):
    cluster, page = tmp_path / "a.toml", tmp_path / "a.html"
    cluster.write_text(ONE_HOST.format(overlaps="true"))
    words = ["simulate", *GPT, "-n", "4", f"--cluster={cluster}", *strategy]
    result = shoal(*words, f"--timeline={page}")
    assert result.returncode == 0, result.stderr
    assert '"aten::mm"' in page.read_text() or '"aten::addmm"' in page.read_text()
    assert '"shoal::' in page.read_text()
    cluster.write_text(ONE_HOST.format(overlaps="false"))
    in_turn = shoal(*words).stdout
    assert milliseconds(in_turn, "step") >= milliseconds(result.stdout, "step")
    assert milliseconds(in_turn, "exposed") >= milliseconds(result.stdout, "exposed")
    cluster.write_text(ONE_HOST.format(overlaps="true").replace("1 GB/s", "1000 GB/s"))
    assert milliseconds(shoal(*words).stdout, "step") < milliseconds(result.stdout, "step")


@pytest.mark.parametrize("peak", ["0.1 GFLOP/s", "10 GFLOP/s", "1000 GFLOP/s"])
def test_samples_a_second_are_of_the_step(shoal, tmp_path, peak):
    cluster = tmp_path / "a.toml"
    cluster.write_text(ONE_HOST.format(overlaps="true").replace("100 GFLOP/s", peak))
    said = shoal("simulate", *GPT, f"--cluster={cluster}", "-n", "1").stdout
    rates = re.search(r"ms, ([\d.,]+) samples a second of 128 tokens, ([\d.,]+) tokens a second", said)
    samples, tokens = (float(rate.replace(",", "")) for rate in rates.groups())
    assert samples == pytest.approx(8 / (milliseconds(said, "step") / 1e3), rel=6e-3)
    assert tokens == pytest.approx(128 * samples, rel=6e-3)


def test_what_does_not_fit_is_said(shoal, tmp_path):
    cluster = tmp_path / "a.toml"
    cluster.write_text(ONE_HOST.format(overlaps="true").replace("1 GiB", "64 MiB"))
    result = shoal("simulate", *GPT, "-n", "2", f"--cluster={cluster}")
    assert re.search(r"this does not fit: rank 0 would need \S+, and its small has 64.0MiB\n", result.stdout)


REFUSED_STEPS = [
    (["-n", "2"], 2, "simulate: --cluster says on which machines"),
    (["--cluster=clusters/a100.toml"], 2, "simulate: --ranks says how many devices of the cluster train"),
    (["-n", "2", "--cluster=clusters/a100.toml", "--stages=2"], 2, "are of a schedule alone"),
    (["-n", "2", "--cluster=no/such.toml"], 1, "cannot read no/such.toml: No such file or directory"),
    (
        ["-n", "2048", "--cluster=clusters/a100.toml", "--training.global_batch_size=16384"],
        1,
        "--ranks is 2048, and clusters/a100.toml has 1024 devices. Remedy: fewer ranks, or more [[hosts]]",
    ),
]


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSED_STEPS)
def test_a_step_that_cannot_be_played_is_refused(shoal, arguments, code, message):
    result = shoal("simulate", "recipes/gpt.toml", *arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr


def test_options_of_a_step_want_a_recipe(shoal):
    result = shoal("simulate", *SMALL, "--cluster=clusters/a100.toml")
    assert result.returncode == 2
    assert "--ranks, --cluster and --plan are of a recipe's step, and no RECIPE is given" in result.stderr
    assert "nothing reads --training.steps=2" in shoal("simulate", "--training.steps=2").stderr


def test_tables_are_not_priced(shoal):
    result = shoal("simulate", "recipes/deepfm.toml", "-n", "1", "--cluster=clusters/a100.toml")
    assert result.returncode == 1
    assert "the recipe has [[tables]], and what servers take is not priced" in result.stderr


def test_calibrate_says_at_once_what_is_wrong(shoal):
    result = shoal("calibrate", "-o", "/no/such/here.toml")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "shoal: calibrate: cannot write to /no/such: No such file or directory\n"
    for no_file in ("", "/tmp"):
        result = shoal("calibrate", "-o", no_file)
        assert (result.returncode, result.stdout) == (2, "")
        assert f'calibrate: -o is "{no_file}", wanted the file to write' in result.stderr
    for words in (["calibrate", "-o", "here.toml"], ["simulate", "recipes/gpt.toml"]):
        result = shoal(*words, "-n", "0")
        assert result.returncode == 2
        assert "0 ranks; wanted 1 or more" in result.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_machine_that_is_calibrated_plays_a_step(shoal, tmp_path, ranks):
    path = tmp_path / "here.toml"
    result = shoal("calibrate", f"--output={path}", f"--nproc-per-node={ranks}")
    assert result.returncode == 0, result.stderr
    assert re.search(r"products of 1024, f32 +[\d.]+ GFLOP/s +spread +[\d.]+ %\n", result.stdout)
    assert ("all-reduce of 4.0MiB within a host" in result.stdout) == (ranks == 2)
    took = float(re.search(r"measured in ([\d.]+) s\n", result.stdout)[1])
    assert took < 60
    learned = tomllib.loads(path.read_text())
    assert {"aten::mm", "aten::gelu", "shoal::adam"} <= learned["kinds"]["cpu"]["slower"].keys()
    assert "step_floor" in learned["kinds"]["cpu"]
    if ranks == 2:
        assert {"all_reduce", "reduce_scatter", "all_gather"} <= learned["links"]["devices"]["slower"].keys()
    said = shoal("simulate", *GPT, "-n", str(ranks), f"--cluster={path}").stdout
    assert "another machine" not in said
    path.write_text(path.read_text().replace('machine = "', 'machine = "not '))
    said = shoal("simulate", *GPT, "-n", str(ranks), f"--cluster={path}").stdout
    assert re.search(r"here.toml was measured on another machine: not .*; this is .*\n", said)
    # A floor and a ceiling that no machine is beyond; how close it comes is measured by bench/simulate.py.
    assert 1 < milliseconds(said, "step") < 60_000


def test_a_run_is_held_against_what_is_simulated_and_learned_from(shoal, tiny, tmp_path):
    cluster, mended = tmp_path / "a.toml", tmp_path / "mended.toml"
    cluster.write_text(ONE_HOST.format(overlaps="true").replace("devices = 4", "devices = 1"))
    steps = ["--training.steps=20", "--validation.freq=0"]
    result = shoal("train", tiny, *steps, f"--profiling.cluster={cluster}")
    assert result.returncode == 0, result.stderr
    file = tmp_path / "out" / "simulated.json"
    line = r"^simulated: [\d.]+ ms a step, measured [\d.]+ ms \([+-][\d.]+ %\).*; all: " + str(file) + "$"
    assert len(re.findall(line, result.stdout, re.M)) == 1
    found = json.loads(file.read_text())
    assert found["steps"] == 10 and found["seconds_in_no_op"] > 0
    calls = {op["op"]: op["calls"] for op in found["ops"]}
    assert calls["aten::mm"] > 0 and all(op["measured_seconds"] > 0 for op in found["ops"])
    said = milliseconds(shoal("simulate", tiny, "-n", "1", f"--cluster={cluster}").stdout, "step")
    assert abs(said - 1e3 * found["simulated_seconds"]) < 1e-3

    result = shoal("calibrate", f"--from-trace={file}", f"--output={mended}")
    assert result.returncode == 0, result.stderr
    assert (
        f"{mended}: what {file} was simulated on, mended by {len(calls)} ops of 10 steps\n" in result.stdout
    )
    assert re.search(r"^aten::mm +\d+ +[\d.]+ ms +[\d.]+ ms +[+-][\d.]+ %$", result.stdout, re.M)
    said = milliseconds(shoal("simulate", tiny, "-n", "1", f"--cluster={mended}").stdout, "step")
    # What it learned from was played on the cluster as it was then.
    cluster.write_text("another by now")
    again = tmp_path / "again.toml"
    assert shoal("calibrate", f"--from-trace={file}", f"--output={again}").returncode == 0
    assert again.read_text() == mended.read_text()
    # Medians by op do not add up to the median of steps; ops of the floor alone share one.
    assert 0.6 < said / (1e3 * found["measured_seconds"]) < 1.6


def test_a_comparison_that_cannot_be_is_refused_before_training(shoal, tiny, tmp_path):
    result = shoal("train", tiny, "--profiling.cluster=no/such.toml", "--training.steps=20")
    assert result.returncode == 1 and "no/such.toml: No such file or directory" in result.stderr
    result = shoal("train", tiny, "-n", "2", "--profiling.cluster=no/such.toml", "--training.steps=20")
    assert (result.returncode, result.stderr) == (
        1,
        "shoal: cannot read no/such.toml: No such file or directory\n",
    )
    result = shoal("train", tiny, "--profiling.cluster=no/such.toml", "--training.steps=19")
    assert result.returncode == 2
    assert "profiling.cluster compares 20 steps, more than training.steps, 19" in result.stderr
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"cluster": 1}')
    result = shoal("calibrate", f"--from-trace={wrong}", f"--output={tmp_path}/a.toml")
    assert result.returncode == 1
    assert f"{wrong} is not what a run with profiling.cluster has written" in result.stderr
    result = shoal("calibrate", f"--from-trace={wrong}", f"--output={tmp_path}/a.toml", "-n", "2")
    assert result.returncode == 1 and "leave -n out" in result.stderr
