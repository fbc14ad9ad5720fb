#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Repeats what the docs claim, a name for each claim; needs what `make test` needs.

tools/prove.py                 the names, with what each proves and how long it takes
tools/prove.py NAME …          proves them; ends with 1 if one does not hold
tools/prove.py --short NAME …  in seconds, with fewer trials: what CI runs
tools/prove.py --record NAME … and writes the result into docs/proofs.md
"""

import argparse
import dataclasses
import datetime
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "proofs.md"
PYTEST = "{python} -m pytest -q -s -p no:cacheprovider tests/python/"
TRIALS = "{python} tests/fault/launch_trials.py "
# Of OpenMP's threads those that wait leave the cores to ranks that are threads.
MATRIX = "OMP_WAIT_POLICY=passive {build}/parallel_test --test-case="


def resumed(results, case):
    """Goes on after the cells of an earlier run that was stopped, if of this very program."""
    file = f"outputs/{results}"
    return f"[ {file} -nt {{build}}/parallel_test ] || rm -f {file}; {MATRIX}'{case}' --no-skip && rm {file}"


@dataclasses.dataclass(frozen=True)
class Proof:
    claim: str
    page: str  # where the docs say so
    minutes: float  # on two cores
    full: str  # a command line, run from the root of the tree
    short: str


PROOFS = {
    "bare": Proof(
        "on a Debian 12 that has nothing installed `make demo` trains, and then again without a network",
        "README.md",
        20,
        "tools/bare.sh",
        "tools/bare.sh --short",
    ),
    "demo": Proof(
        "after the first time `make demo` needs no network",
        "README.md",
        8,
        "unshare --net make PRESET={preset} demo >{scratch}/said && "
        "grep -q ^held-out {scratch}/said && sed -n 's/^held-out /seen: /p' {scratch}/said",
        "unshare --net sh -c 'tools/setup.sh && {build}/shoal train recipes/gpt.toml --training.steps=2"
        " --lr_scheduler.warmup_steps=0 --sample.tokens=8 --job.dump_folder={scratch}'",
    ),
    "kills": Proof(
        "30 kills at random moments, in saves too, cost no bit",
        "docs/checkpoints.md",
        2,
        PYTEST + "cli/test_resume.py -k thirty_kills",
        PYTEST + "cli/test_resume.py -k thirty_kills",
    ),
    "faults": Proof(
        "225 faults end in time with the right rank named, and leave nothing",
        "docs/launcher.md",
        12,
        TRIALS + "faults 225",
        TRIALS + "faults 4 1",
    ),
    "notice": Proof(
        "after `kill -9` the other ranks have the error within half a second",
        "docs/launcher.md",
        2,
        TRIALS + "notice 50",
        TRIALS + "notice 2 1",
    ),
    "restart": Proof(
        "a job that is started again goes on within 3 s and the program's start",
        "docs/launcher.md",
        1,
        TRIALS + "restart 20",
        TRIALS + "restart 2 1",
    ),
    "calm": Proof(
        "8 ranks for ten minutes over shared memory, and over Gloo, raise no false alarm",
        "docs/launcher.md",
        21,
        TRIALS + "calm 600",
        TRIALS + "calm 2",
    ),
    "strangers": Proof(
        "100,000 wrong keys to each of two jobs, then garbage on every port: none is accepted, no error; "
        "with a third core at least 0.8 of the speed is kept",
        "docs/launcher.md",
        2,
        TRIALS + "strangers 100000",
        TRIALS + "strangers 400",
    ),
    "start": Proof(
        "two ranks start, call and end sooner than under torchrun",
        "docs/launcher.md",
        1,
        TRIALS + "start 9",
        TRIALS + "start 1",
    ),
    "hosts": Proof(
        "hosts that train with ZeRO-3 and with tensor parallelism have the losses of one device",
        "docs/launcher.md",
        1,
        PYTEST + "test_run_hosts.py",
        PYTEST + "test_run_hosts.py -k losses",
    ),
    "tables": Proof(
        "rows on {1, 2, 4} servers with {1, 2, 3} ranks are those of one device, five recipes; the number of "
        "servers changes no bit",
        "docs/parameter_server.md",
        4,
        "SHOAL_WHOLE_MATRIX=1 " + PYTEST + "cli/test_tables.py -k rows_of_one_device",
        PYTEST + "cli/test_tables.py -k 'rows_of_one_device and deepfm'",
    ),
    "recompute": Proof(
        "recompute (whole, by path, within three budgets) and offload have the result of one device: nine "
        "models alone, with DP, ZeRO-1, -2, -3, tensor parallel and in stages",
        "docs/parallelism.md",
        30,
        "SHOAL_WHOLE_MATRIX=1 " + PYTEST + "cli/test_saved_memory.py",
        PYTEST + "cli/test_saved_memory.py",
    ),
    "limits": Proof(
        "at 40 random limits memory.auto keeps each run below its limit, and refuses less than the least",
        "docs/parallelism.md",
        15,
        "{python} bench/memory.py --limits=40 --auto",
        "{python} bench/memory.py mlp --limits=2 --auto",
    ),
    "matrix": Proof(
        "every model, strategy, number of ranks and of micro-batches trains as one device does",
        "docs/parallelism.md",
        10,
        resumed("matrix.txt", "the whole matrix trains*"),
        MATRIX + "'the cover has*'",
    ),
    "pipelines": Proof(
        "every model in two to four stages, by every schedule, alone and with every other way to train on "
        "ranks, trains as one device does; stopped and started again it goes on",
        "docs/pipelines.md",
        75,
        resumed("pipelines.txt", "the whole matrix of pipelines*"),
        MATRIX + "'the cover of pipelines has*'",
    ),
}


def prove(name, is_short, scratch):
    """What it has seen, and the seconds it took; None if it does not hold.

    Seen is what lines after "seen: " say, or the last line.
    """
    shoal = pathlib.Path(os.environ.get("SHOAL_COMMAND", ROOT / "bin" / "shoal")).resolve()
    if not shoal.exists():
        sys.exit(f"prove: {shoal} is not built: run make build first")
    line = PROOFS[name].short if is_short else PROOFS[name].full
    line = line.format(python=sys.executable, build=shoal.parent, preset=shoal.parent.name, scratch=scratch)
    print(f"prove: {name}: {line}", flush=True)
    begin, seen, last = time.monotonic(), [], ""
    with subprocess.Popen(["sh", "-c", line], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for text in process.stdout:
            print(text, end="", flush=True)
            last = re.sub(r"\x1b\[[\d;]*m", "", text).strip() or last
            seen += re.findall(r"^\W*seen: (.*)", text)  # pytest's dots may stand before it
    return ("; ".join(seen) or last if process.returncode == 0 else None), time.monotonic() - begin


def row(name, result):
    proof = PROOFS[name]
    where = f"[{proof.page.removeprefix('docs/')}]({os.path.relpath(ROOT / proof.page, PAGE.parent)})"
    return f"| `{name}` | {proof.claim} | {where} | {proof.minutes:g} min | {result} |"


def results():
    """What the page says of each name that it has."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    return dict(rows)


def write(found):
    """The page's table, a row for each proof."""
    head, _, rest = PAGE.read_text().partition("|---|---|---|---|---|\n")
    tail = rest[rest.find("\n\n") :] if "\n\n" in rest else "\n"
    body = "\n".join(row(name, found.get(name, "not yet run in full")) for name in PROOFS)
    PAGE.write_text(f"{head}|---|---|---|---|---|\n{body}{tail}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PROOFS):
        sys.exit(f"prove: there is no {sorted(unknown)[0]!r}; there are {', '.join(PROOFS)}")
    if options.short and options.record:
        sys.exit("prove: --record is for whole proofs, without --short")
    for name, proof in PROOFS.items() if not options.names else ():
        print(f"{name:10} {proof.minutes:3g} min  {proof.claim}")
    failed = []
    for name in options.names:
        with tempfile.TemporaryDirectory() as scratch:
            result, seconds = prove(name, options.short, scratch)
        print(f"prove: {name} {'FAILED' if result is None else 'holds'}, {seconds:.0f} s", flush=True)
        if result is None:
            failed.append(name)
        if options.record and result is not None:
            today = datetime.date.today().isoformat()
            write(results() | {name: f"{today}, {seconds / 60:.0f} min: {result}"})
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
