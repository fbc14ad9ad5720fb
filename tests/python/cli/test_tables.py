# SPDX-License-Identifier: Apache-2.0
"""Recipes whose rows are in tables: on servers, on several ranks, and what goes wrong there."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest
from processes import line_of
from small import SMALL

RECIPES = ["deepfm", "wide_deep", "dcn", "dlrm_clicks", "word2vec"]
DRAWN = [("deepfm", 4, 2), ("wide_deep", 2, 3), ("dcn", 1, 3), ("dlrm_clicks", 2, 2), ("word2vec", 4, 1)]
WHOLE = [(recipe, servers, ranks) for recipe in RECIPES for servers in (1, 2, 4) for ranks in (1, 2, 3)]


@pytest.fixture(scope="module")
def errors():
    found = []
    yield found
    if found:
        print(f"seen: {len(found)} recipes on servers and ranks, largest error {max(found):.1e}")


# All of them: tools/prove.py tables.
@pytest.mark.parametrize(
    ("recipe", "servers", "ranks"), WHOLE if os.environ.get("SHOAL_WHOLE_MATRIX") else DRAWN
)
def test_ranks_and_servers_have_the_rows_of_one_device(shoal, errors, recipe, servers, ranks):
    result = shoal(
        "verify", f"recipes/{recipe}.toml", "-n", ranks, f"--ps.servers={servers}", "--verify.steps=2"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    error = float(re.search(r"largest error: (\S+), allowed", result.stdout)[1])
    assert error < 1e-9
    assert servers == 1 or "have the rows of one loop, bit for bit" in result.stdout
    errors.append(error)


def test_micro_batches_and_zero_have_them_too(shoal):
    result = shoal(
        "verify",
        "recipes/deepfm.toml",
        *["-n", 2, "--ps.servers=2", "--ps.threads=2", "--verify.steps=2"],
        *["--parallelism.data_parallel_shard_degree=2", "--training.local_batch_size=2"],
        "--training.global_batch_size=8",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 x 4 samples" in result.stdout


# Adam moves rows that a batch does not have where all are in memory: one device has tables too then.
def test_other_row_optimizers_and_bfloat16(shoal):
    for options in (["--tables.0.optimizer=adam"], ["--tables.0.optimizer=ftrl", "--tables.0.l1=0.01"]):
        result = shoal(
            "verify", "recipes/deepfm.toml", "-n", 2, "--ps.servers=2", "--verify.steps=2", *options
        )
        assert result.returncode == 0, result.stdout + result.stderr


def losses_in(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [value for line in lines for key, value in line.items() if key in {"loss", "validation_auc"}]


# With more rows than memory: shoal/ps/cold_servers_test.cpp.
def test_memory_of_tables_changes_no_bit_and_halves_on_the_wire_change_little(shoal, tmp_path):
    losses = {}
    for name, options in (
        ("plain", []),
        ("bounded", ["--ps.memory=128MiB"]),
        ("halves", ["--ps.wire_dtype=bfloat16"]),
    ):
        folder = tmp_path / name
        result = shoal(
            "train",
            "recipes/deepfm.toml",
            *SMALL,
            "-n",
            2,
            "--ps.servers=2",
            *options,
            f"--job.dump_folder={folder}",
        )
        assert result.returncode == 0, result.stderr
        losses[name] = losses_in(folder)
    assert losses["bounded"] == losses["plain"]
    assert losses["halves"] != losses["plain"]
    assert losses["halves"] == pytest.approx(losses["plain"], abs=2e-3)
    little = shoal(
        "train", "recipes/deepfm.toml", *SMALL, "--ps.memory=1MiB", f"--job.dump_folder={tmp_path}"
    )
    assert little.returncode == 1
    assert 'table "rows.weight": 1.0MiB of memory are less than the' in little.stderr


def test_a_run_on_servers_is_that_of_one_process(shoal, tmp_path):
    wanted = None
    served = ["-n", 2, "--ps.servers=2"]
    for name, options in (("alone", []), ("ahead", [*served, "--ps.prefetch=true"]), ("served", served)):
        folder = tmp_path / name
        result = shoal(
            "train",
            "recipes/deepfm.toml",
            *SMALL,
            "--training.dtype=float64",
            f"--job.dump_folder={folder}",
            *options,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        losses = losses_in(folder)
        assert len(losses) == 14
        wanted = wanted or losses
        assert losses == pytest.approx(wanted, rel=1e-9)
    assert losses_in(tmp_path / "ahead") == losses  # bit for bit
    assert "[0] model:   deepfm, 56,257 parameters, 1 table on 2 servers" in result.stdout
    results = json.loads((tmp_path / "served" / "results.json").read_text())
    assert results["measures"]["AUC"]["baseline_name"] == "the oracle"


@pytest.mark.parametrize("mode", ["async", "half_async", "geo"])
def test_ranks_that_do_not_wait_for_each_other_learn_as_well(shoal, tmp_path, mode):
    options = ["--training.steps=300", "--ps.geo_steps=7", f"--job.dump_folder={tmp_path}"]
    options += ["--dataset.samples=20000", "--validation.freq=100"]
    result = shoal(
        "train", "recipes/deepfm.toml", *SMALL, *options, "-n", 2, "--ps.servers=2", f"--ps.mode={mode}"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    losses = losses_in(tmp_path)
    assert sum(losses[-100:]) < 0.98 * sum(losses[:100])  # 0.95, but for who comes first
    results = json.loads((tmp_path / "results.json").read_text())
    assert results.get("stalest_row_steps", 4) == 4  # what is allowed, and is made use of
    assert ("stalest_row_steps" in results) == (mode == "half_async")


def check_verbs(shoal, saved, folder):
    inspected = shoal("ps", "inspect", saved)
    assert inspected.returncode == 0, inspected.stderr
    number = int(re.search(r"^rows (\d+), digest [0-9a-f]{16}", inspected.stdout, re.M)[1])
    assert number > 100 and " in 2 files, " in inspected.stdout
    lines = shoal("ps", "dump", saved).stdout.splitlines()
    assert len(lines) == 1 + number and lines[0].startswith("key,part0.0,part0.1")
    keys = [int(line.split(",")[0]) for line in lines[1:]]
    assert keys == sorted(set(keys))
    exported = shoal("ps", "export", saved, folder / "served")
    assert exported.returncode == 0, exported.stderr
    assert shoal("ps", "dump", folder / "served").stdout.splitlines() == lines  # values alone
    assert (folder / "served.0").stat().st_size < 0.7 * sum(
        saved.with_name(f"{saved.name}.{part}").stat().st_size for part in (0, 1)
    )
    refused = shoal("ps", "export", saved, folder / "served", "--min-score=0.5")
    assert "a base by score wants scored = true" in refused.stderr
    itself = shoal("ps", "export", saved, saved.parent / "." / saved.name)
    assert itself.returncode != 0 and "is the save itself" in itself.stderr
    assert "nothing was saved there" in shoal("ps", "inspect", folder / "none").stderr


# Saved at steps 4, 8 and 12 by two servers; 8 is gone on from by three, and by one process.
def test_rows_are_in_checkpoints_and_go_on_elsewhere(shoal, tmp_path):
    saves = ["--checkpoint.enable=true", "--checkpoint.interval=4", "--training.dtype=float64"]
    served = ["-n", 2, "--ps.servers=2"]

    def train(name, *options):
        folder = f"--job.dump_folder={tmp_path / name}"
        return shoal("train", "recipes/deepfm.toml", *SMALL, *saves, folder, *options)

    result = train("whole", *served)
    assert result.returncode == 0, result.stdout + result.stderr
    wanted = losses_in(tmp_path / "whole")
    rows = tmp_path / "whole" / "checkpoint" / "rows"
    assert sorted(p.name for p in rows.iterdir()) == [f"step_{step:08}" for step in (4, 8, 12)]
    for name, options in (("more", ["-n", 2, "--ps.servers=3"]), ("alone", [])):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        result = train(name, *options, "--checkpoint.load_step=8")
        assert result.returncode == 0, result.stdout + result.stderr
        assert "resume:  step 8 from " in result.stdout
        assert losses_in(tmp_path / name)[-5:] == pytest.approx(wanted[-5:], rel=1e-9)
    check_verbs(shoal, rows / "step_00000012" / "rows.weight", tmp_path)
    (rows / "step_00000012" / "rows.weight.1").unlink()
    result = train("whole", *served, "--training.steps=14")
    assert result.returncode == 1
    assert "rows.weight.0: one of 2 files of its save, and 1 were given" in result.stderr


def children_of(process):
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(process)], capture_output=True, text=True
    )
    rows = [line.split(None, 1) for line in listed.stdout.splitlines()]
    return {int(row[0]): row[1] if len(row) > 1 else "" for row in rows}


def servers_below(process):
    found = []
    for child, command in children_of(process).items():
        found += [child] if "ps serve" in command else servers_below(child)
    return found


# The server ends in the middle of the run, which then has the losses of one that nobody disturbed.
@pytest.mark.parametrize(("which", "servers", "threads"), [(0, 2, 1), (1, 2, 2), (2, 3, 1)])
def test_a_run_goes_on_to_the_bit_where_a_server_is_killed(shoal, tmp_path, which, servers, threads):
    command = [shoal.path, "train", "recipes/deepfm.toml", *SMALL, "-n", "2", f"--ps.servers={servers}"]
    command += ["--training.steps=60", "--validation.freq=20", "--metrics.log_freq=1"]
    command += [f"--ps.threads={threads}"]

    def train(name, at_step=None):
        folder = tmp_path / name
        with subprocess.Popen(
            [*command, f"--job.dump_folder={folder}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as run:
            try:
                while at_step and f"step: {at_step:>2}" not in line_of(run):
                    pass
                if at_step:
                    begin = time.monotonic()
                    os.kill(servers_below(run.pid)[which], signal.SIGKILL)
                    while f"step: {at_step + 3:>2}" not in line_of(run):
                        pass
                    print(f"seen: 3 steps within {time.monotonic() - begin:.2f} s of a server's end")
                    assert time.monotonic() - begin < 2
                _, errors = run.communicate(timeout=60)
            finally:
                run.kill()
        assert run.returncode == 0, errors
        return errors, losses_in(folder)

    _, wanted = train("undisturbed")
    errors, losses = train("disturbed", at_step=9)
    assert losses == wanted
    assert re.search(
        r"shoal run: server \d: killed by signal 9 \(Killed\); training goes on with the copies of", errors
    )


def losses_until(command, folder, is_enough):
    """Losses by step of a run that is interrupted when is_enough(line, step) says so."""
    with subprocess.Popen(
        [*command, f"--job.dump_folder={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        try:
            at, said = 0, []
            for line in run.stdout:
                step = re.search(r"step: +(\d+)", line)
                at = int(step[1]) if step else at
                said.append(line)
                if is_enough(line, at, run):
                    break
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 128 + signal.SIGINT, "".join(said[-20:])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


# Each when the rows are on two servers again. A hundred of them: SHOAL_WHOLE_MATRIX=1.
@pytest.mark.timeout(3600)
def test_servers_killed_over_and_over_change_no_bit(shoal, tmp_path):
    kills = 100 if os.environ.get("SHOAL_WHOLE_MATRIX") else 6
    command = [shoal.path, "train", "recipes/deepfm.toml", *SMALL, "-n", "2", "--ps.servers=2"]
    command += ["--training.steps=1000000", "--validation.freq=1000000", "--dataset.samples=20000"]
    command += ["--metrics.log_freq=1"]
    took, killed_at, until = [], None, 20

    def kill(line, step, run):
        nonlocal killed_at, until
        if "each row is on two servers again" in line:
            until = step + random.randrange(1, 20)
        if "step: " not in line:
            return False
        if killed_at and step >= killed_at[0] + 3:
            took.append(time.monotonic() - killed_at[1])
            killed_at = None
        if until and not killed_at and step >= until and len(took) < kills:
            killed_at, until = (step, time.monotonic()), None
            os.kill(random.choice(servers_below(run.pid)), signal.SIGKILL)
        return until is not None and len(took) == kills

    disturbed = losses_until(command, tmp_path / "disturbed", kill)
    steps = max(disturbed)
    wanted = losses_until(command, tmp_path / "undisturbed", lambda _, step, __: step >= steps)
    print(f"seen: {len(took)} servers killed over {steps} steps, 3 steps within {max(took):.2f} s each time")
    assert disturbed == {step: loss for step, loss in wanted.items() if step <= steps}
    assert len(disturbed) == steps
    assert max(took) < 2


# One server, two, four, three, while two ranks train; and one that is killed as soon as it is given rows.
def test_servers_come_and_leave_while_a_run_goes_on_to_the_bit(shoal, tmp_path):
    command = [
        shoal.path,
        "train",
        "recipes/deepfm.toml",
        *SMALL,
        "-n",
        "2",
        "--ps.servers=1",
        "--ps.parts=4",
    ]
    command += ["--training.steps=2000", "--validation.freq=2000", "--metrics.log_freq=5"]
    wanted = shoal(*command[1:], f"--job.dump_folder={tmp_path / 'undisturbed'}")
    assert wanted.returncode == 0, wanted.stderr
    folder = tmp_path / "moved"
    log = tmp_path / "log.txt"

    def ps(verb, *options):
        result = shoal("ps", verb, folder, *options)
        return result.returncode, result.stdout + result.stderr

    assert ps("add")[0] == 1
    assert "no job runs in" in ps("add")[1]
    with (
        log.open("w") as out,
        subprocess.Popen(
            [*command, f"--job.dump_folder={folder}"], stdout=out, stderr=subprocess.STDOUT
        ) as run,
    ):
        try:
            while run.poll() is None and "step: " not in log.read_text():
                pass
            assert (folder / "running.json").stat().st_mode & 0o777 == 0o600
            code, said = ps("add")
            assert code == 0 and "; the servers are 0, 1, of 4 parts" in said, said
            code, said = ps("add", "--servers=2")
            assert code == 0 and "; the servers are 0, 1, 2, 3, of 4 parts" in said, said
            code, said = ps("add")
            assert code == 1 and "5 threads of servers would share 4 parts" in said, said
            code, said = ps("remove", "--server=7")
            assert code == 1 and "there is no server 7 that could leave; there is 0, 1, 2, 3" in said, said
            with subprocess.Popen(
                [shoal.path, "ps", "remove", folder, "--server=0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as removes:
                assert "server 0: " in line_of(removes)  # it begins
                os.kill(servers_below(run.pid)[2], signal.SIGKILL)
                assert removes.wait(30) == 0
            until = time.monotonic() + 10  # the process ends after the map has nothing of it
            while len(servers_below(run.pid)) != 3 and time.monotonic() < until:
                pass
            assert len(servers_below(run.pid)) == 3
            running = (folder / "running.json").read_text()
            run.wait(60)
        finally:
            run.kill()
    assert run.returncode == 0, log.read_text()
    assert "shoal run: server 0 has left" in log.read_text()
    assert losses_in(folder) == losses_in(tmp_path / "undisturbed")
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    slowest = max(step["seconds"] for step in steps[10:] if "seconds" in step)
    print(f"seen: a step took {1000 * slowest:.0f} ms at most")
    assert slowest < 1
    assert not (folder / "running.json").exists()
    (folder / "running.json").write_text(running)
    (folder / "running.json").chmod(0o600)
    code, said = ps("remove", "--server=1")
    assert code == 1 and "runs no more" in said, said
    (folder / "running.json").chmod(0o644)
    assert "may be read by others" in ps("add")[1]


def test_a_server_that_is_killed_is_named_within_seconds(shoal, tmp_path):
    command = [shoal.path, "train", "recipes/deepfm.toml", *SMALL, "-n", "2", "--ps.servers=2"]
    command += ["--ps.copies=1"]
    command += ["--training.steps=100000", f"--job.dump_folder={tmp_path}"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while "step:" not in line_of(run):
            pass
        servers = servers_below(run.pid)
        assert len(servers) == 2
        begin = time.monotonic()
        os.kill(servers[1], signal.SIGKILL)
        _, errors = run.communicate(timeout=30)
        assert time.monotonic() - begin < 10
        assert run.returncode == 1
        assert re.search(r"shoal run: server [01]: killed by signal 9 \(Killed\)", errors)
    finally:
        run.kill()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-n", 2], "2 ranks share the rows of [[tables]], which servers have, and ps.servers is 0"),
        (["--tables.0.parameters=row.weight"], 'tables: no parameter of deepfm is called "row.weight"'),
        (
            ["--tables.0.optimiser=adam"],
            "there is no key tables.0.optimiser; did you mean tables.0.optimizer?",
        ),
        (["--tables.0.optimizer=adamw"], 'tables.0.optimizer: there is no "adamw"; did you mean "adam"?'),
        (["--tables.lr=1"], "tables.lr: this is a list: a file has [[tables]], with two brackets, and an"),
        (["--tables.1.lr=1"], "tables.1.parameters is not said"),
        (
            ["--training.max_norm=1"],
            "training.max_norm is 1, and the norm of all gradients would lack those of rows",
        ),
        (["--ps.mode=halfasync"], 'ps.mode: there is no "halfasync"; did you mean "half_async"?'),
        (["--ps.prefetch=true", "--ps.mode=geo"], "ps.prefetch is true, and ps.mode is geo"),
        (["--ps.prefetch=true", "--ps.cache_rows=0"], "ps.prefetch is true, and ps.cache_rows is 0"),
        (["--ps.memory=lots"], 'ps.memory is "lots"; it is a number with a unit'),
        (["--ps.cold_folder=cold"], 'ps.cold_folder is "cold", and ps.memory bounds nothing'),
        (["--ps.wire_dtype=bfloat16"], "and tables are in this process: there is no wire"),
        (["--model.fields=3"], "a sample of clicks has 26 ids and 13 numbers; model.fields is 3"),
    ],
)
def test_what_cannot_be_is_wrong_use(shoal, options, message):
    result = shoal("train", "recipes/deepfm.toml", *options)
    assert result.returncode == 2
    assert message in result.stderr


def test_only_a_mode_whose_runs_are_alike_is_verified(shoal):
    result = shoal("verify", "recipes/deepfm.toml", "-n", 2, "--ps.servers=1", "--ps.mode=geo")
    assert result.returncode == 1
    assert "verify: ps.mode is geo, whose ranks do not wait for each other's rows" in result.stderr
