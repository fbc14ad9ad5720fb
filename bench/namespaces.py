# SPDX-License-Identifier: Apache-2.0
"""Hosts for benchmarks: network namespaces of this machine, with links of so many bits a second."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time


@dataclasses.dataclass
class Host:
    name: str  # of its network namespace
    keeper: subprocess.Popen  # whose child is the first process of its namespace of processes

    def first_process(self):
        """All others end with it."""
        for _ in range(100):
            with open(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children") as children:
                if pids := children.read().split():
                    return pids[0]
            time.sleep(0.01)
        raise RuntimeError(f"bench: there is no first process on {self.name}")


def ip(*words):
    subprocess.run(["ip", *map(str, words)], check=True)


@contextlib.contextmanager
def hosts(num, rate):
    """Yields (hosts, key file): host i is 10.79.0.i+1 on its interface net0, all on one switch; needs root.

    rate: as tc has it, "1gbit", each way of each host's link; None: as fast as it goes.
    """
    names = [f"bench-{os.getpid()}-{i}" for i in range(num)]
    switch = f"bench-{os.getpid()}-switch"
    made, keepers = [], []
    key = pathlib.Path(tempfile.mkdtemp(prefix="bench_hosts_")) / "key"
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what is below is done
    try:
        for name in [switch, *names]:
            ip("netns", "add", name)
            made.append(name)
        ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge0", "up")
        for i, name in enumerate(names):
            ends = ["type", "veth", "peer", "name", "net0", "netns", name]
            ip("link", "add", f"port{i}", "netns", switch, *ends)
            ip("-n", switch, "link", "set", f"port{i}", "master", "bridge0", "up")
            ip("-n", name, "addr", "add", f"10.79.0.{i + 1}/24", "dev", "net0")
            for interface in ["net0", "lo"]:
                ip("-n", name, "link", "set", interface, "up")
            if rate:
                shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
                for where, interface in [(name, "net0"), (switch, f"port{i}")]:
                    tc = ["ip", "netns", "exec", where, "tc", "qdisc", "add", "dev", interface]
                    subprocess.run(tc + shape, check=True)
        for name in names:
            sleep = ["ip", "netns", "exec", name, "unshare", "--pid", "--fork"]
            sleep += ["--kill-child", "--mount-proc"]
            keepers.append(subprocess.Popen([*sleep, "sleep", "infinity"]))
        key.touch(0o600)
        key.write_bytes(os.urandom(32))
        yield [Host(*each) for each in zip(names, keepers, strict=True)], key
    finally:
        signal.signal(signal.SIGTERM, before)
        for keeper in keepers:
            keeper.kill()
            keeper.wait()
        for name in made:
            subprocess.run(["ip", "netns", "delete", name])
        key.unlink(missing_ok=True)
        key.parent.rmdir()


def on(host, command):
    """The command on that host, in whose namespace of processes ranks share memory."""
    enter = ["nsenter", "--target", host.first_process(), "--net", "--mount", "--pid", f"--wd={os.getcwd()}"]
    return [*enter, *map(str, command)]


def environment(rank, ranks, local_rank, local_ranks, key, port):
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_ranks),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "10.79.0.1",
        "MASTER_PORT": str(port),
        "SHOAL_PORT": str(port + 1),
        "SHOAL_KEY_FILE": str(key),
        "SHOAL_INTERFACE": "net0",
        "GLOO_SOCKET_IFNAME": "net0",
    }


def bytes_sent(host):
    """Over the host's link, so far."""
    path = "/sys/class/net/net0/statistics/tx_bytes"
    shown = subprocess.run(["ip", "netns", "exec", host.name, "cat", path], capture_output=True, check=True)
    return int(shown.stdout)
