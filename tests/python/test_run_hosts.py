# SPDX-License-Identifier: Apache-2.0
"""shoal run on several hosts, which are network namespaces here.

Above 400 lines: all cases have the same hosts, and ranks on them."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import tomllib

import pytest
from processes import line_of, rank_of, running, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal")).resolve()
RANKS = SHOAL.parent / "example_ranks"
FOREVER = "exec tail -f /dev/null"


def ip(*words):
    return subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, timeout=60)


@pytest.fixture
def hosts(request, tmp_path):
    """Two namespaces, or as many as are asked for, 10.77.0.1 and so on, and a key file.

    Host 0 holds the switch; the port of host i there is port<i>.
    """
    num = getattr(request, "param", 2)
    if (
        os.geteuid() != 0
        or not shutil.which("ip")
        or ip("netns", "add", f"shoal-probe-{os.getpid()}").returncode
    ):
        pytest.skip("network namespaces are not permitted here: root and ip netns are needed")
    ip("netns", "delete", f"shoal-probe-{os.getpid()}")
    names = [f"shoal-{os.getpid()}-{i}" for i in range(num)]
    for name in names:
        assert ip("netns", "add", name).returncode == 0
    if ip("-n", names[0], "link", "add", "net0", "type", "bridge").returncode:
        for name in names:
            ip("netns", "delete", name)
        pytest.skip("this kernel has no bridges")
    for i, name in enumerate(names[1:], 1):
        ip(
            "link",
            "add",
            f"port{i}",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "net0",
            "netns",
            name,
        )
        ip("-n", names[0], "link", "set", f"port{i}", "master", "net0", "up")
    for i, name in enumerate(names):
        ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "net0")
        ip("-n", name, "link", "set", "net0", "up")
        ip("-n", name, "link", "set", "lo", "up")
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(32))
    yield names, key
    for name in names:
        ip("netns", "delete", name)


def on_hosts(
    hosts, *program, nnodes=None, node_ranks=None, keys=None, limit=300, apart=False, options=((),) * 9
):
    """shoal run on each of them, two ranks on each, with options of each.

    `apart`: hosts do not see each other's processes, so that they share no memory. A signal to a process that
    is returned is then not the launcher's.
    """
    names, key = hosts
    processes = []
    for i, name in enumerate(names):
        command = ["ip", "netns", "exec", name, "unshare", "--uts"]
        command += ["--pid", "--fork", "--mount-proc", "--kill-child"] if apart else []
        command += [
            "sh",
            "-c",
            f'hostname host{i}; exec "$@"',
            "x",
            SHOAL,
            "run",
            "-n",
            "2",
            f"--limit={limit}",
        ]
        command += [
            f"--nnodes={(nnodes or [len(names)] * 9)[i]}",
            f"--node-rank={(node_ranks or range(9))[i]}",
        ]
        command += ["--master-addr=10.77.0.1", "--master-port=29777", f"--key-file={(keys or [key] * 9)[i]}"]
        words = [*map(str, command), *map(str, options[i]), *map(str, program)]
        processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return processes


def outputs_of(processes, limit=60):
    return [process.communicate(timeout=limit) for process in processes]


two_and_three = pytest.mark.parametrize("hosts", [2, 3], indirect=True, ids=["2 hosts", "3 hosts"])


@two_and_three
def test_hosts_train_together(hosts):
    processes = on_hosts(hosts, RANKS, "--steps=50", "--backend=gloo")
    outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    assert f"[0] {2 * len(processes)} ranks, steps 0 to 50: sum " in outputs[0][0]


# What a recipe trains on, in seconds; dropout would hide that a rank draws what another should.
RECIPE = """
[job]
dump_folder = "{folder}"
[model]
name = "gpt2"
vocab_size = 300
n_positions = 16
n_embd = 16
n_layer = 1
n_head = 2
embd_pdrop = 0.1
[dataset]
path = "README.md"
held_out_bytes = 400
[training]
local_batch_size = 4
global_batch_size = 4
seq_len = 16
steps = 4
dtype = "float64"
[metrics]
log_freq = 1
[validation]
freq = 2
steps = 1
[sample]
tokens = 0
"""


def losses_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [value for line in lines for key, value in line.items() if key in {"loss", "validation_loss"}]


@pytest.mark.parametrize(
    "strategy",
    [
        [],
        ["--parallelism.data_parallel_shard_degree=-1"],
        ["--parallelism.tensor_parallel_degree=4"],
        ["--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_shard_degree=2"],
    ],
    ids=["data", "ZeRO-3", "tensor", "ZeRO-3 of tensor"],
)
def test_hosts_have_the_losses_of_one_device(hosts, strategy, tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE.format(folder=tmp_path / "alone"))
    subprocess.run([SHOAL, "train", recipe], cwd=ROOT, check=True, capture_output=True, timeout=100)
    train = ["train", recipe, f"--job.dump_folder={tmp_path / 'together'}", *strategy]
    processes = on_hosts(hosts, SHOAL, *train, apart=True)
    outputs = outputs_of(processes, limit=100)
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "; shared memory on each of 2 hosts, Gloo between them\n" in outputs[0][0]
    wanted, found = losses_of(tmp_path / "alone"), losses_of(tmp_path / "together")
    assert len(wanted) == 6
    assert found == pytest.approx(wanted, rel=1e-9)
    worst = max(abs(a / b - 1) for a, b in zip(found, wanted, strict=True))
    print(f"\nseen: 2 hosts of 2 ranks, {' '.join(strategy)}: losses within {worst:.1e} of one device's")


def test_what_keeps_a_limit_of_memory_is_chosen_once_for_all_hosts(hosts, tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE.format(folder=tmp_path / "alone"))
    larger = ["--model.n_layer=3", "--training.global_batch_size=256"]
    larger += [f"--model.{where}_pdrop=0" for where in ("embd", "attn", "resid")]  # micro-batches draw others
    larger += ["--training.local_batch_size=64", "--parallelism.data_parallel_shard_degree=-1"]
    one = [*larger, "--training.local_batch_size=256"]
    subprocess.run([SHOAL, "train", recipe, *one], cwd=ROOT, check=True, capture_output=True, timeout=100)
    auto = [*larger, "--memory.auto=true"]

    def on_all(limit):
        folder = f"--job.dump_folder={tmp_path / 'together'}"
        processes = on_hosts(
            hosts, SHOAL, "train", recipe, *auto, f"--memory.limit={limit}B", folder, apart=True
        )
        return processes, outputs_of(processes, limit=100)

    processes, outputs = on_all(1)
    assert all(process.returncode for process in processes), outputs
    least = re.search(r"the least that a rank takes is (\d+) bytes", "".join(error for _, error in outputs))
    assert least, outputs
    processes, outputs = on_all(int(least[1]))
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert re.search(r"memory.auto: (?!as it is)", outputs[0][0]), outputs
    assert losses_of(tmp_path / "together") == pytest.approx(losses_of(tmp_path / "alone"), rel=1e-9)


def test_hosts_are_calibrated(hosts, tmp_path):
    path = tmp_path / "here.toml"
    processes = on_hosts(hosts, SHOAL, "calibrate", "-o", path, apart=True)
    outputs = outputs_of(processes, limit=400)
    assert [process.returncode for process in processes] == [0, 0], outputs
    cluster = tomllib.loads(path.read_text())
    assert [host["devices"] for host in cluster["hosts"]] == [2, 2]
    assert [cluster["links"][name]["overlaps"] for name in ("devices", "hosts")] == [False, True]
    slower = cluster["links"]["hosts"]["slower"]
    assert {name: len(points) for name, points in slower.items()} == dict.fromkeys(
        ["all_reduce", "all_gather", "reduce_scatter"], 3
    )
    assert re.search(r"a kernel beside a message +[\d.]+ times", outputs[0][0])
    assert re.search(r"a message beside kernels +[\d.]+ times", outputs[0][0])
    assert all(times >= 1 for times in cluster.get("overlap", {}).values())
    played = ["simulate", "recipes/gpt.toml", "-n", "4", f"--cluster={path}"]
    said = subprocess.run([SHOAL, *played], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "4 devices on 2 hosts, replicate=4, 1 micro-batch\n" in said


# Between hosts messages are under way while a rank computes, unless a plan says otherwise.
@pytest.mark.parametrize(
    "strategy", [[], ["--parallelism.data_parallel_shard_degree=-1"]], ids=["data", "ZeRO-3"]
)
@pytest.mark.parametrize(
    ("fault", "named"), [("KILL", "killed by signal 9"), ("STOP", "stopped, while others waited for it")]
)
def test_a_rank_that_fails_while_messages_are_under_way_is_named(hosts, strategy, fault, named, tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE.format(folder=tmp_path / "out"))
    folder = f"--job.dump_folder={tmp_path / 'out'}"
    train = ["train", recipe, folder, "--training.steps=1000000", "--validation.freq=0", *strategy]
    processes = on_hosts(hosts, SHOAL, *train, limit=5, apart=True)
    while "step:  9" not in line_of(processes[0]):
        pass
    begin = time.monotonic()
    os.kill(rank_of(folder, 3), signal.Signals[f"SIG{fault}"])
    outputs = outputs_of(processes)
    assert time.monotonic() - begin < 15
    for _, errors in outputs:
        assert re.search(rf"rank 3 \(?.*failed first: {named}", errors), outputs
    assert running(folder) == []


def kill_host(process):
    """The launcher's two processes: ranks and what holds their sockets end with them."""
    keeper = int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    os.kill(keeper, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)


# What waits hears of it from the launchers alone, what trains from its own connections too.
@pytest.mark.parametrize(("hosts", "program"), [(2, "waits"), (3, "trains")], indirect=["hosts"])
@pytest.mark.parametrize("how", ["death", "link"])
def test_a_host_that_dies_or_is_cut_off_is_named(hosts, how, program, tmp_path):
    last = len(hosts[0]) - 1
    state = tmp_path / "state"
    if program == "waits":
        processes = on_hosts(hosts, "sh", "-c", f"echo ready; {FOREVER}")
        for process in processes:
            for _ in range(2):
                assert line_of(process).endswith("ready\n")
    else:
        processes = on_hosts(hosts, RANKS, "--steps=100000000", f"--state={state}")
        until(state.exists, *processes)
    begin = time.monotonic()
    if how == "death":
        kill_host(processes[last])
    else:
        ip("-n", hosts[0][0], "link", "set", f"port{last}", "down")
    outputs = outputs_of(processes)
    assert time.monotonic() - begin < 15
    for process, (_, errors) in zip(processes[:last], outputs[:last], strict=True):
        assert f"host host{last} (node rank {last})" in errors, outputs
        assert process.returncode != 0
    if how == "link":
        assert "the first host host0 is lost" in outputs[last][1]


@two_and_three
def test_the_first_host_is_named_when_it_dies(hosts, tmp_path):
    state = tmp_path / "state"
    processes = on_hosts(hosts, RANKS, "--steps=100000000", f"--state={state}")
    until(state.exists, *processes)
    kill_host(processes[0])
    outputs = outputs_of(processes)
    for process, (_, errors) in zip(processes[1:], outputs[1:], strict=True):
        assert "shoal run: ended: the first host host0 is lost" in errors, outputs
        assert process.returncode == 1


def test_a_rank_that_fails_ends_the_other_host(hosts):
    script = f"if [ $RANK = 3 ]; then exit 5; fi; {FOREVER}"
    processes = on_hosts(hosts, "sh", "-c", script)
    outputs = [process.communicate(timeout=30) for process in processes]
    assert "rank 3 failed first: exit code 5" in outputs[0][1], outputs
    assert "rank 3 (host host1" in outputs[0][1]
    assert "shoal run: ended: rank 3 failed first: exit code 5" in outputs[1][1]
    assert [process.returncode for process in processes] == [5, 5]


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_two_hosts_of_one_number_are_named(hosts):
    processes = on_hosts(hosts, "true", node_ranks=(0, 1, 1), limit=5)
    errors = [errors for _, errors in outputs_of(processes)]
    named = "two hosts say that they are node rank 1: host"
    assert sum(named in one for one in errors) == 1, errors
    assert "of 3 hosts these did not come within 5 s: node rank 2" in errors[0], errors


def test_hosts_that_disagree_say_so(hosts, tmp_path):
    outputs = [process.communicate(timeout=90) for process in on_hosts(hosts, "true", nnodes=(2, 3))]
    assert "was started with --nnodes=3, host host0 with --nnodes=2" in outputs[0][1]
    other = tmp_path / "other"
    other.touch(0o600)
    other.write_bytes(os.urandom(32))
    processes = on_hosts(hosts, "true", keys=[hosts[1], other])
    assert "refused this process: its key is not the job's" in processes[1].communicate(timeout=30)[1]
    processes[0].terminate()
    processes[0].communicate(timeout=30)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (["--servers=1"], "1 --threads=1 --copies=2 --parts=0"),
        (["--servers=2", "--server-copies=1"], "2 --threads=1 --copies=1 --parts=0"),
    ],
)
def test_hosts_that_disagree_on_servers_say_so(hosts, other, said):
    processes = on_hosts(hosts, "sleep", "60", options=[["--servers=2"], other])
    outputs = outputs_of(processes)
    assert 0 not in [process.returncode for process in processes]
    differ = re.search(
        r"run: host host\d was started with servers (.*), host host\d with (.*), which are those of all "
        "hosts together; start all with the same",
        outputs[0][1] + outputs[1][1],
    )
    assert sorted(differ.groups()) == sorted([said, "2 --threads=1 --copies=2 --parts=0"])


def servers_on(name):
    found = []
    for process in ip("netns", "pids", name).stdout.split():
        words = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if words[1:3] == [b"ps", b"serve"]:
            found.append(int(process))
    return found


def start_with_servers(hosts, folder, servers, *more, copies=2):
    program = [SHOAL, "train", ROOT / "recipes/deepfm.toml", "--dataset.samples=4000", "--validation.freq=0"]
    program += ["--dataset.held_out=512", "--training.local_batch_size=16", "--training.steps=200"]
    program += ["--metrics.log_freq=1", f"--ps.servers={servers}", f"--job.dump_folder={folder}", *more]
    options = [f"--servers={servers}", f"--server-copies={copies}"]
    return on_hosts(hosts, *program, options=[options] * 2)


def wait_for_step(processes, step):
    while not re.search(f"step: +{step} ", line_of(processes[0])):
        pass


def train_with_a_kill(hosts, folder, servers, copies=2):
    """Exit codes and outputs, where the server of the second host is killed on the way."""
    processes = start_with_servers(hosts, folder, servers, copies=copies)
    wait_for_step(processes, 3)
    found = [servers_on(name) for name in hosts[0]]
    assert [len(each) for each in found] == [servers - 1, 1]
    wait_for_step(processes, 9)
    os.kill(found[1][0], signal.SIGKILL)
    outputs = outputs_of(processes)
    return [process.returncode for process in processes], outputs


@pytest.mark.parametrize("servers", [2, 3])
def test_servers_are_spread_over_hosts_and_one_may_be_killed(hosts, servers, tmp_path):
    undisturbed = start_with_servers(hosts, tmp_path / "undisturbed", servers)
    outputs = outputs_of(undisturbed)
    assert [process.returncode for process in undisturbed] == [0, 0], outputs
    codes, outputs = train_with_a_kill(hosts, tmp_path / "disturbed", servers)
    assert codes == [0, 0], outputs
    killed = "shoal run: server 1: killed by signal 9 (Killed); training goes on with the copies"
    assert killed in outputs[1][1]
    assert "each row is on two servers again" in outputs[0][0] + outputs[1][0]
    wanted = losses_of(tmp_path / "undisturbed")
    assert len(wanted) == 201  # and the validation at the end
    assert losses_of(tmp_path / "disturbed") == wanted


def test_a_server_of_another_host_that_ends_is_named(hosts, tmp_path):
    codes, outputs = train_with_a_kill(hosts, tmp_path / "run", servers=2, copies=1)
    assert 0 not in codes
    assert "shoal run: server 1: killed by signal 9 (Killed)\n" in outputs[0][1]
    assert "shoal run: ended: server 1: killed by signal 9 (Killed)" in outputs[1][1]


@pytest.mark.parametrize("which", [0, 1])
def test_servers_write_the_last_rows_of_a_job_that_is_told_to_end(hosts, which, tmp_path):
    folder = tmp_path / "run"
    more = ["--checkpoint.enable=true", "--checkpoint.interval=1000"]
    processes = start_with_servers(hosts, folder, 2, *more)
    wait_for_step(processes, 9)
    processes[which].send_signal(signal.SIGTERM)
    outputs = outputs_of(processes)
    assert 0 not in [process.returncode for process in processes]
    assert "; training goes on" not in outputs[0][1] + outputs[1][1]  # without a checkpoint
    (step,) = folder.glob("checkpoint/step_*")
    assert sorted(file.name for file in (folder / "checkpoint" / "rows" / step.name).iterdir()) == [
        "rows.weight.0",
        "rows.weight.1",
    ]
