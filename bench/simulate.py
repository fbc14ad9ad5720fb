#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How close shoal simulate comes to what training takes on this machine.

    python bench/simulate.py [--models NAME …] [--rounds N] [--steps N]
    python bench/simulate.py --hosts 2 --rate 1gbit      a GPT of 30 M parameters, a rank on each host

In each round of a model: calibrates the machine for one rank and for two, trains the recipe alone, and on two
ranks with data parallel, ZeRO-3 and tensor parallel, and simulates the same; every second round backwards, so
that what is trained last is not always furthest from the calibration. A machine that others use has another
speed some minutes later: what is compared is close together. A training has --steps steps, and more where
these are said to take less than --seconds: a machine needs part of a second to get to its speed. A line has
the median of the rounds' median steps that were trained (and the least and the most of them), that of what
was simulated, and by how much it is off, the median of rounds; then the mean of that, and for each model
Kendall's tau of its strategies: 1 where they come in the same order, -1 the other way round. Which of two is
the faster is said by the median of their ratios, round by round, of steps that were trained and that were
simulated, as a machine that others use is faster in some minutes than in others. It is given for all of them,
for those on two ranks alone, and without pairs of which the rounds do not say which is the faster: the
ratio's 95 % interval has 1 in it.
Hosts are network namespaces (as root), with --batch samples of 128 tokens a rank, data parallel and ZeRO-3.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import namespaces
import paired

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODELS = ["mlp", "gpt", "llama", "bert", "t5", "vit", "resnet", "lstm"]
STRATEGIES = {
    "one rank": (1, []),
    "data parallel": (2, []),
    "ZeRO-3": (2, ["--parallelism.data_parallel_shard_degree=2"]),
    "tensor": (2, ["--parallelism.tensor_parallel_degree=2"]),
}
LEFT_OUT = 3  # of the steps: the first captures, and the machine gets warm
GPT_30M = ["recipes/gpt.toml", "--model.vocab_size=16384", "--model.n_embd=512", "--model.n_layer=7"]
GPT_30M += ["--model.n_head=8"]


class Here:
    """Ranks of this machine."""

    def run(self, ranks, *words):
        words = [str(word) for word in words]
        words += [f"--nproc-per-node={ranks}"] if ranks > 1 else []
        return self.said(subprocess.run(words, cwd=ROOT, capture_output=True, text=True), words)

    @staticmethod
    def said(result, words):
        if result.returncode != 0:
            sys.exit(f"bench/simulate.py: {' '.join(words)}: {result.stdout}{result.stderr}")
        return result.stdout


class Hosts(Here):
    """A rank on each of some namespaces."""

    def __init__(self, machines, key):
        self.machines, self.key, self.port = machines, key, 29100

    def run(self, ranks, *words):
        self.port += 10
        started = []
        for rank in range(ranks):
            environment = namespaces.environment(rank, ranks, 0, 1, self.key, self.port)
            command = namespaces.on(self.machines[rank], words)
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            started.append(subprocess.Popen(command, cwd=ROOT, env=environment, **pipes))
        said = [process.communicate()[0] for process in started]
        if code := max(abs(process.returncode) for process in started):
            sys.exit(f"bench/simulate.py: {' '.join(map(str, words))}: {code}: {' '.join(said)}")
        return said[0]


def trained(shoal, where, recipe, ranks, strategy, steps, folder):
    # As many samples a rank on both, so that one rank's step is no other problem.
    words = [shoal, "train", *recipe, f"--job.dump_folder={folder}", f"--training.steps={steps}", *strategy]
    words += ["--lr_scheduler.warmup_steps=0", "--checkpoint.enable=false", "--validation.freq=0"]
    words += ["--sample.tokens=0"]
    where.run(ranks, *words)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["seconds"] for line in lines[LEFT_OUT:] if "seconds" in line)


def simulated(shoal, recipe, ranks, strategy, cluster):
    said = Here().run(1, shoal, "simulate", *recipe, "-n", ranks, f"--cluster={cluster}", *strategy)
    return float(re.search(r"step ([\d.]+) ms", said)[1]) / 1e3


def kendall(strategies):
    """Tau of {name: (ranks, seconds of each round, what was simulated in it)}: of all, of those on as many
    ranks, and of pairs that the rounds tell apart. nan: there is none. Prints the pairs."""
    signs, together, apart = [], [], []
    for (name, of_one), (other, of_other) in itertools.combinations(strategies.items(), 2):
        (ranks, took, said), (others_ranks, theirs, others) = of_one, of_other
        middle, low, high = paired.interval([x / y for x, y in zip(took, theirs, strict=True)])
        told = statistics.median(x / y for x, y in zip(said, others, strict=True))
        sign = 1 if (middle - 1) * (told - 1) > 0 else -1
        is_tie = low <= 1 <= high
        signs.append(sign)
        together += [sign] * (ranks == others_ranks)
        apart += [sign] * (not is_tie)
        print(
            f"{'':7} {name} ÷ {other}: {middle:.3f} [{low:.3f}, {high:.3f}], simulated {told:.3f}"
            f"{', which the rounds do not tell apart' * is_tie}",
            flush=True,
        )
    return [sum(each) / len(each) if each else math.nan for each in (signs, together, apart)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, help="of recipes/")
    parser.add_argument("--rounds", type=int, default=3, help="how often each strategy is trained")
    parser.add_argument("--steps", type=int, default=10, help="of each training, at least")
    parser.add_argument("--seconds", type=float, default=1.5, help="that each training takes, at least")
    parser.add_argument("--hosts", type=int, default=0, help="so many namespaces, a rank on each")
    parser.add_argument("--rate", help="of each host's link, as tc has it: 1gbit")
    parser.add_argument("--batch", type=int, default=16, help="samples of a rank on hosts")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}")
    if arguments.steps <= LEFT_OUT:
        parser.error(f"--steps is {arguments.steps}, and the first {LEFT_OUT} are left out")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        where, sizes, strategies = Here(), [1, 2], STRATEGIES
        recipes = {model: [f"recipes/{model}.toml"] for model in arguments.models}
        if arguments.hosts:
            where = Hosts(*stack.enter_context(namespaces.hosts(arguments.hosts, arguments.rate)))
            batch = f"--training.local_batch_size={arguments.batch}"
            sizes, recipes = [arguments.hosts], {"gpt_30m": [*GPT_30M, batch]}
            zero3 = [f"--parallelism.data_parallel_shard_degree={arguments.hosts}"]
            strategies = {"data parallel": (arguments.hosts, []), "ZeRO-3": (arguments.hosts, zero3)}
        compare(where, sizes, recipes, strategies, arguments, folder)


def compare(where, sizes, recipes, strategies, arguments, folder):
    shoal = ROOT / os.environ.get("BUILD", "build/release") / "shoal"
    took = {(model, strategy): [] for model in recipes for strategy in strategies}
    said = {each: [] for each in took}
    off, taus = [], []
    for model in recipes:
        for turn in range(arguments.rounds):
            for ranks in sizes:
                print(where.run(ranks, shoal, "calibrate", f"--output={folder}/{ranks}.toml"), flush=True)
            for strategy in reversed(strategies) if turn % 2 else strategies:
                ranks, words = strategies[strategy]
                told = simulated(shoal, recipes[model], ranks, words, folder / f"{ranks}.toml")
                said[model, strategy].append(told)
                steps = max(arguments.steps, math.ceil(arguments.seconds / told))
                run = folder / f"{model}-{strategy}-{turn}"
                took[model, strategy].append(trained(shoal, where, recipes[model], ranks, words, steps, run))
        of_model = {}
        for strategy, (ranks, _) in strategies.items():
            seen, told = took[model, strategy], said[model, strategy]
            of_model[strategy] = (ranks, seen, told)
            more = statistics.median(y / x for x, y in zip(seen, told, strict=True)) - 1
            off.append(abs(more))
            print(
                f"{model:7} {strategy:14} trained {of(seen)}, simulated {of(told)}, {100 * more:+6.1f} %",
                flush=True,
            )
        taus.append(kendall(of_model))
        print(f"{model:7} {text_of(taus[-1])}", flush=True)
    least = [
        min((tau for tau in each if not math.isnan(tau)), default=math.nan)
        for each in zip(*taus, strict=True)
    ]
    print(f"mean error {100 * statistics.mean(off):.1f} %; at least {text_of(least)}")


def of(seconds):
    low, middle, high = (1e3 * f(seconds) for f in (min, statistics.median, max))
    return f"{middle:8.2f} ms ({low:.2f} to {high:.2f})"


def text_of(taus):
    return "tau {:.2f}, on two ranks {:.2f}, of pairs that the rounds tell apart {:.2f}".format(*taus)


if __name__ == "__main__":
    main()
