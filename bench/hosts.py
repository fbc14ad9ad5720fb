#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduces or all-to-alls between hosts: LibTorch's Gloo against what is chosen for hosts, in turns.

    .venv/bin/python bench/hosts.py [--hosts 2] [--ranks 2] [--op all_reduce] [--mebibytes 16] [--rate 1gbit]

Hosts are network namespaces (as root). Ranks are numbered host by host, and then one of each host in turn. A
line has the bytes that the first host sent over its link in a call, the median time, and the median of the
ratios of Gloo's time to ours.
"""

import argparse
import json
import pathlib
import subprocess

import namespaces

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Ranks:
    def __init__(self, hosts, key, ranks, links, port, interleaved):
        self.processes = []
        num = len(hosts) * ranks
        for rank in range(num):
            host, place = (rank % len(hosts), rank // len(hosts)) if interleaved else divmod(rank, ranks)
            self.processes.append(
                subprocess.Popen(
                    namespaces.on(hosts[host], links),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=namespaces.environment(rank, num, place, ranks, key, port),
                )
            )
        self.kind = self.answers()[0]["is"]

    def answers(self):
        lines = [process.stdout.readline() for process in self.processes]
        if not all(lines):
            raise SystemExit("bench: a rank has ended")
        return [json.loads(line) for line in lines]

    def run(self, which, calls):
        """The time of each call on its slowest rank."""
        for process in self.processes:
            process.stdin.write(f"{which} {calls}\n")
            process.stdin.flush()
        return [max(each) for each in zip(*[answer["seconds"] for answer in self.answers()], strict=True)]

    def end(self):
        for process in self.processes:
            process.stdin.close()
            process.wait(timeout=20)


def median(values):
    return sorted(values)[len(values) // 2]


def compare(ranks, host, rounds):
    """(bytes, seconds) of flat and of hosts, and the median ratio of their times."""
    seconds, sent = {"flat": [], "hosts": []}, {}
    for which in seconds:
        ranks.run(which, 1)
        before = namespaces.bytes_sent(host)
        ranks.run(which, 3)
        sent[which] = (namespaces.bytes_sent(host) - before) / 3
    for _ in range(rounds):
        for which, times in seconds.items():
            times += ranks.run(which, 1)
    ratios = [flat / ours for flat, ours in zip(seconds["flat"], seconds["hosts"], strict=True)]
    return sent, {which: median(times) for which, times in seconds.items()}, median(ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="of each host")
    parser.add_argument("--op", default="all_reduce", choices=["all_reduce", "all_to_all"])
    parser.add_argument("--mebibytes", type=int, default=16)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--preset", default="release")
    arguments = parser.parse_args()
    links = [ROOT / "build" / arguments.preset / "bench/links", arguments.op, arguments.mebibytes << 20]
    with namespaces.hosts(arguments.hosts, arguments.rate) as (hosts, key):
        for number, order in enumerate(["by host", "interleaved"]):
            ranks = Ranks(
                hosts,
                key,
                arguments.ranks,
                links,
                29300 + 10 * number,
                order == "interleaved",
            )
            try:
                sent, seconds, ratio = compare(ranks, hosts[0], arguments.rounds)
            finally:
                ranks.end()
            print(
                f"{arguments.op} of {arguments.mebibytes} MiB, {arguments.hosts} hosts x {arguments.ranks} "
                f"ranks {order}: "
                f"Gloo {sent['flat'] / 2**20:.1f} MiB, {seconds['flat'] * 1e3:.0f} ms; {ranks.kind} "
                f"{sent['hosts'] / 2**20:.1f} MiB, {seconds['hosts'] * 1e3:.0f} ms; "
                f"{sent['hosts'] / sent['flat']:.3f} of the bytes, {ratio:.2f} times faster",
                flush=True,
            )


if __name__ == "__main__":
    main()
