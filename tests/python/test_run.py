# SPDX-License-Identifier: Apache-2.0
"""shoal run: what programs get, how jobs end, and that nothing is left of them."""

import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import time

import pytest
from processes import line_of, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal")).resolve()
RANKS = SHOAL.parent / "example_ranks"
GOLDEN = ROOT / "tests" / "golden" / "cli" / "help_run.txt"
FOREVER = "exec tail -f /dev/null"


def run(*arguments, limit=60, **options):
    command = [str(SHOAL), "run", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, **options)


def shell(ranks, script, *options, **more):
    return run("-n", ranks, *options, "sh", "-c", script, **more)


@pytest.fixture
def started():
    """Starts shoal run, and ends it with the test."""
    processes = []

    def start(*arguments):
        command = [str(SHOAL), "run", *map(str, arguments)]
        processes.append(
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=20)


def is_alive(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(processes, seconds):
    end = time.monotonic() + seconds
    while any(map(is_alive, processes)):
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


def test_the_help_is_frozen():
    result = run("--help")
    if os.environ.get("SHOAL_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(result.stdout)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == GOLDEN.read_text()


def test_each_rank_gets_torchruns_variables_and_its_lines_begin_with_its_number():
    script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR; echo e >&2"
    result = shell(3, script)
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == [f"[{r}] {r} 3 {r} 3 127.0.0.1" for r in range(3)]
    assert sorted(result.stderr.splitlines()) == [f"[{r}] e" for r in range(3)]


def test_the_program_may_stand_behind_two_dashes():
    for options in (["-n", "1", "--"], ["-n1", "--pin-cores", "--"], ["--nnodes=1", "-n", "1"]):
        done = run(*options, "sh", "-c", 'echo "$@"', "sh", "--", "x")
        assert done.returncode == 0, done.stderr
        assert "-- x" in done.stdout


def test_a_line_without_an_end_and_the_last_words_of_a_rank_are_printed():
    result = shell(2, 'printf "no end"; kill -9 $$')
    assert sorted(result.stdout.splitlines()) == ["[0] no end", "[1] no end"]


def test_the_first_rank_that_fails_is_named_with_its_output_and_ends_the_others():
    begin = time.monotonic()
    result = shell(3, f'if [ $RANK = 1 ]; then echo last words; exit 7; fi; trap "" TERM; {FOREVER}')
    assert time.monotonic() - begin < 5
    assert result.returncode == 7
    assert "rank 1 failed first: exit code 7\n" in result.stderr
    assert "      last words\n" in result.stderr


def test_a_rank_that_a_signal_killed_is_named_with_the_signal():
    result = shell(2, f"if [ $RANK = 0 ]; then kill -SEGV $$; fi; {FOREVER}")
    assert result.returncode == 128 + signal.SIGSEGV
    assert "rank 0 failed first: killed by signal 11 (Segmentation fault)" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(started, number):
    script = 'trap "echo got it; exit 0" TERM INT; echo ready; tail -f /dev/null & wait'
    process = started("-n", 2, "sh", "-c", script)
    for _ in range(2):
        assert line_of(process).endswith("ready\n")
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert sorted(output.splitlines()) == ["[0] got it", "[1] got it"]
    assert process.returncode == 128 + number


@pytest.mark.parametrize("victim", ["launcher", "keeper"])
def test_nothing_is_left_when_the_launcher_is_killed(started, victim):
    """Neither ranks, nor what they started in sessions of their own."""
    script = f"setsid sh -c '{FOREVER}' & echo $! $$ $PPID; {FOREVER}"
    process = started("-n", 2, "sh", "-c", script)
    others = set()
    for _ in range(2):
        others.update(int(word) for word in line_of(process).split()[1:])
    assert len(others) == 5  # two ranks, two that they started, and the keeper
    keeper = int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    assert keeper in others
    os.kill(process.pid if victim == "launcher" else keeper, signal.SIGKILL)
    assert gone(others, 5)
    process.communicate(timeout=20)
    assert process.returncode != 0


def test_all_ranks_start_again_as_often_as_allowed():
    script = "echo try $TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ]"
    result = shell(2, script, "--max-restarts=3")
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == [f"[{r}] try {t}" for r in range(2) for t in range(3)]
    assert "restart 2 of 3" in result.stderr
    result = shell(1, "exit 3", "--max-restarts=1")
    assert result.returncode == 3
    assert "not started again: 1 restarts were made" in result.stderr


def test_output_goes_to_a_folder_too(tmp_path):
    result = shell(2, "echo I am $RANK; exit $RANK", f"--log-dir={tmp_path}")
    assert result.returncode == 1
    assert (tmp_path / "attempt_0" / "rank_1.log").read_text() == "[1] I am 1\n"
    assert "0 calls" in (tmp_path / "attempt_0" / "flight_rank_1.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-n", "0", "true"], 2, "run: --nproc-per-node is 0, wanted 1 to 1024"),
        (["-n", "100000", "true"], 2, "run: --nproc-per-node is 100000, wanted 1 to 1024"),
        (["-n", "2"], 2, "run: no program; write it after the options"),
        (
            ["--max-restart=3", "true"],
            2,
            "run: there is no option --max-restart=3; shoal run --help names all",
        ),
        (["--nnodes=2", "--node-rank=2", "true"], 2, "run: --node-rank is 2, wanted 0 to --nnodes - 1"),
        (["--nnodes=2", "--master-port=1", "true"], 2, "run: with several hosts --key-file has to be given"),
        (["/no/such/program"], 1, "run: cannot start /no/such/program: No such file or directory"),
        (["--interface=none0", "true"], 1, 'there is no network interface "none0" with an IPv4 address'),
        (["--log-dir=/proc/no", "true"], 1, "run: cannot make the folder /proc/no/attempt_0: "),
    ],
)
def test_what_cannot_be_is_said(arguments, code, message):
    result = run(*arguments)
    assert message in result.stderr
    assert result.returncode == code


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(os.urandom(32))
    return f"--key-file={path}"


@pytest.fixture
def port():
    """A port that is taken, but on which nobody answers once it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_port_that_is_taken_is_named(key, port):
    number = port.getsockname()[1]
    result = run("--nnodes=2", f"--master-port={number}", key, "true")
    assert f"cannot listen on 127.0.0.1:{number}: Address already in use; another job" in result.stderr
    assert result.returncode == 1


def test_a_first_host_out_of_reach_and_one_that_never_comes_are_named(key, port):
    number = port.getsockname()[1]
    port.close()
    several = ["--nnodes=2", f"--master-port={number}", key, "--limit=1"]
    result = run(*several, "--node-rank=1", "true")
    assert f"run: nothing answered on 127.0.0.1:{number} within 1 s; is shoal run started" in result.stderr
    result = run(*several, "true")
    assert "run: of 2 hosts these did not come within 1 s: node rank 1" in result.stderr


def test_a_rank_that_never_comes_is_named():
    result = shell(3, f"if [ $RANK = 1 ]; then {FOREVER}; fi; exec {RANKS}", "--limit=2")
    assert re.search(r"elastic: of 3 ranks these did not come within (1\.9\d*|2) s: 1;", result.stderr)
    assert "shoal run: rank 1 failed first: did not call join, and others waited for it\n" in result.stderr
    assert result.returncode == 1


def test_more_ranks_than_memory_or_descriptors_allow_are_refused(tmp_path):
    result = run("-n", 500, "true", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400)))
    assert "run: 500 ranks need 2064 descriptors, 400 are allowed; raise ulimit -n" in result.stderr
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 8000000 kB\nMemFree: 1 kB\nMemAvailable: 65536 kB\n")
    command = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"', memory]
    if os.geteuid() != 0 or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("mounts are not permitted here: nothing can pass for a small memory")
    command += [SHOAL, "run", "-n", "100", "true"]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    assert "run: 100 ranks have 655.4KiB of memory each, wanted at least 4.0MiB" in result.stderr
    assert result.returncode == 1


def processes_below(process):
    children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children] + [p for child in children for p in processes_below(child)]


def test_garbage_on_every_port_disturbs_nobody(started, tmp_path):
    state = tmp_path / "state"
    process = started("-n", 2, RANKS, "--backend=gloo", "--steps=1500", f"--state={state}")
    until(state.exists, process)
    ours = processes_below(process.pid)
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout.splitlines()
    ports = [line.split()[3] for line in lines if any(f"pid={one}," in line for one in ours)]
    assert len(ports) >= 3  # the store, and Gloo on each rank
    for address in ports:
        assert address.startswith(("127.0.0.1:", "[::1]:", "[::ffff:127.0.0.1]:"))
        with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1]))) as stranger:
            try:
                stranger.sendall(os.urandom(1 << 20))
            except (BrokenPipeError, ConnectionResetError):
                pass
    output, errors = process.communicate(timeout=60)
    assert output == f"[0] 2 ranks, steps 0 to 1500: sum {total(1500, 2)}\n"
    assert errors == ""


def test_the_key_is_in_no_argument_and_no_environment_and_nobody_else_can_listen(started):
    process = started(
        "-n",
        1,
        "sh",
        "-c",
        f"cat /proc/self/fd/$SHOAL_KEY_DESCRIPTOR | od -An -tx1 -v; env; echo end; {FOREVER}",
    )
    lines = []
    while not lines or not lines[-1].endswith("] end\n"):
        lines.append(line_of(process))
    key = "".join(re.sub(r"^\[0\]", "", line).replace(" ", "").strip() for line in lines[:2])
    assert len(key) == 64
    assert key not in "".join(lines[2:]).replace(" ", "")
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout
    own = [line.split()[3] for line in listening.splitlines() if '"shoal"' in line]
    assert own
    assert all(address.startswith("127.0.0.1:") for address in own)


# --- A program of ranks.


def total(steps, size):
    """What rank 0 of example_ranks has added up."""
    return sum(
        (step * 10 + step % size if step % 3 == 2 else sum(10 * step + rank for rank in range(size)))
        * (1 + step % 1000)
        for step in range(steps)
    )


def ranks(*options, n=4, flags=()):
    return run("-n", n, *flags, str(RANKS), *options)


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_ranks_add_up(backend):
    result = ranks(f"--backend={backend}", "--steps=100")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"[0] 4 ranks, steps 0 to 100: sum {total(100, 4)}\n"


DIFFERENCE = (
    r"rank 2 failed first: comm: call 30: (?=.*rank 2 all_reduce\(i64 x 32, sum\))"
    r".*rank \d all_reduce\(i64 x 31, sum\).*, in step.3\d\n"
)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("kill", r"rank 2 failed first: killed by signal 9 \(Killed\)"),
        ("segfault", r"rank 2 failed first: killed by signal 11 \(Segmentation fault\)"),
        ("exit", r"rank 2 failed first: exit code 3"),
        ("leave", r"rank 2 failed first: exit code 0, while others waited for it"),
        ("exception", r"rank 2 failed first: exit code 1[^$]*no luck in this step"),
        ("stop", r"rank 2 failed first: stopped, while others waited for it"),
        ("skip", DIFFERENCE),
        ("count", DIFFERENCE),
    ],
)
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_whatever_befalls_a_rank_it_is_named(fault, why, backend):
    flags = ["--limit=2"]
    result = ranks(f"--backend={backend}", f"--fault={fault}", "--at=2:30", flags=flags)
    assert re.search(why, result.stderr), result.stderr
    assert result.returncode != 0
    if why == DIFFERENCE:
        shown = re.findall(
            r"^\[(\d)\] comm: call 30: .* x 31, .* x 32, |^\[(\d)\] .* x 32, .* x 31, ", result.stderr, re.M
        )
        assert sorted(a or b for a, b in shown) == ["0", "1", "2", "3"], result.stderr


def test_a_killed_rank_starts_again_and_the_job_goes_on_where_it_was(tmp_path):
    state = tmp_path / "state"
    result = ranks("--fault=kill", "--at=1:60", "--steps=100", f"--state={state}", flags=["--max-restarts=3"])
    assert result.returncode == 0
    assert "restart 1 of 3" in result.stderr
    assert re.search(rf"steps (60|61) to 100: sum {total(100, 4)}\n", result.stdout)


def test_mpirun_starts_the_same_program():
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun; what it puts into the environment is tested in elastic_test")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", RANKS, "--steps=50"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert f"2 ranks, steps 0 to 50: sum {total(50, 2)}" in result.stdout, result.stderr


def test_torchrun_starts_the_same_program():
    torchrun = ROOT / ".venv" / "bin" / "torchrun"
    if not torchrun.exists():
        pytest.skip("no torchrun")
    command = [torchrun, "--nproc-per-node=2", "--no-python", RANKS, "--steps=50"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert f"2 ranks, steps 0 to 50: sum {total(50, 2)}" in result.stdout, result.stderr
