# SPDX-License-Identifier: Apache-2.0
"""Whether ranks train a model as one device does.

    python -m shoal.verify SCRIPT -n 4 --shard=4 [--zero-stage=3] [--steps=3]

SCRIPT is a Python file that defines

    make_trainer(parallelism)    a shoal.Trainer with that parallelism, which is None on one device; the same
                                 model each time
    batch(step)                  the batch of step 0, 1, …, all samples of it, the same on every rank

It trains on one device, and then in a job of -n ranks, each with its part of the batch. After each step the
loss, the gradients, parameters, buffers and the optimizer's state of both are compared. A tensor's error is
the largest difference, as a share of the largest value in it plus the largest in all tensors of its kind.

The first value that differs by more than is allowed is named; the last line is the largest error. Exit codes:
0 the same, 1 not the same or failed, 2 wrong use. Float32 is allowed much, as sums in another order differ:
make the model float64 to be sure.
"""

import argparse
import collections
import collections.abc
import json
import math
import pathlib
import random
import runpy
import subprocess
import sys
import tempfile

import torch

import shoal
from shoal import _command

ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-3}  # between two orders to sum in; others: 5e-2


def arguments_of(words):
    parser = argparse.ArgumentParser(
        prog="python -m shoal.verify", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("script", type=pathlib.Path)
    parser.add_argument("-n", type=int, default=2, metavar="RANKS")
    parser.add_argument("--replicate", type=int)
    parser.add_argument("--shard", type=int, default=1)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--zero-stage", type=int, default=-1)
    parser.add_argument("--plan", type=pathlib.Path, help="a file")
    parser.add_argument("--replicated-input", action="append", default=[], metavar="NAME")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument(
        "--rtol", type=float, help="what is allowed; by default it depends on the model's type"
    )
    parser.add_argument(
        "--folder", type=pathlib.Path, help=argparse.SUPPRESS
    )  # of a rank: what it compares with
    return parser.parse_args(words)


def parallelism_of(arguments):
    return shoal.Parallelism(
        replicate=arguments.replicate,
        shard=arguments.shard,
        tensor=arguments.tensor,
        zero_stage=arguments.zero_stage,
        plan=arguments.plan or "",
        replicated_inputs=arguments.replicated_input,
    )


def wrong_use(what):
    print(f"shoal.verify: {what}", file=sys.stderr)
    sys.exit(2)


def defined_in(script):
    """Its make_trainer and batch."""
    sys.path.insert(0, str(script.parent))
    random.seed(0)
    torch.manual_seed(0)
    names = runpy.run_path(str(script), run_name="shoal_verify")
    for name in ("make_trainer", "batch"):
        if not callable(names.get(name)):
            wrong_use(
                f"{script} defines no function {name}; "
                "it has to define make_trainer(parallelism) and batch(step)"
            )
    return names["make_trainer"], names["batch"]


def values_after(trainer, result):
    """Kind and name of everything there is to compare, in the order in which a mistake would show."""
    yield "loss", "", torch.tensor(result.loss, dtype=torch.float64)
    yield "norm of the gradients", "", torch.tensor(result.grad_norm, dtype=torch.float64)
    for name, tensor in trainer.gradients().items():
        yield "gradient", name, tensor
    for name, tensor in trainer.state_dict()["model"].items():
        yield "parameter or buffer", name, tensor
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    groups = trainer.optimizer.param_groups
    order = [names[id(parameter)] for group in groups for parameter in group["params"]]
    for number, own in trainer.optimizer.state_dict()["state"].items():
        for key, tensor in own.items():
            if torch.is_tensor(tensor):
                yield "optimizer state", f"{order[number]}.{key}", tensor


def part_of(batch, rows_of, replicated, path=""):
    """This rank's part of a batch in any containers."""
    inside = lambda name: f"{path}.{name}" if path else str(name)  # noqa: E731
    if torch.is_tensor(batch):
        return batch if not batch.dim() or path in replicated else batch[rows_of(len(batch))]
    if isinstance(batch, collections.abc.Mapping):
        return {name: part_of(item, rows_of, replicated, inside(name)) for name, item in batch.items()}
    if isinstance(batch, list | tuple):
        items = [part_of(item, rows_of, replicated, inside(i)) for i, item in enumerate(batch)]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch


def largest(tensor):
    return tensor.double().abs().max().item() if tensor.numel() else 0.0


def errors(ours, theirs):
    """Of each value on either side: (error, what it is)."""
    ours = {(kind, name): tensor for kind, name, tensor in ours}
    theirs = {(kind, name): tensor for kind, name, tensor in theirs}
    of_kind = collections.defaultdict(float)
    for (kind, _), tensor in theirs.items():
        of_kind[kind] = max(of_kind[kind], largest(tensor))
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        what = " ".join(filter(None, key))
        if key not in ours or key not in theirs or ours[key].shape != theirs[key].shape:
            yield math.inf, what + (" (not on both sides in the same shape)")
            continue
        off = largest(ours[key].double() - theirs[key].double())
        scale = largest(theirs[key]) + of_kind[key[0]]
        yield (math.inf if off != off else off / scale if off else 0.0), what


def allowed_for(trainer, arguments):
    if arguments.rtol is not None:
        return arguments.rtol
    return max(ALLOWED.get(parameter.dtype, 5e-2) for parameter in trainer.model.parameters())


def train_alone(arguments, folder):
    make_trainer, batch = defined_in(arguments.script)
    trainer = make_trainer(None)
    for step in range(arguments.steps):
        values = list(values_after(trainer, trainer.step(batch(step))))
        torch.save(values, folder / f"step_{step}.pt")
    return allowed_for(trainer, arguments)


def train_as_rank(arguments):
    """Writes a line for each step: its number, the largest error, and the first that is not allowed."""
    make_trainer, batch = defined_in(arguments.script)
    parallelism = parallelism_of(arguments)
    trainer = make_trainer(parallelism)
    with open(arguments.folder / f"rank_{shoal.rank()}.jsonl", "w") as report:
        for step in range(arguments.steps):
            part = part_of(
                batch(step), lambda size: shoal.samples_of(size, parallelism), arguments.replicated_input
            )
            values = values_after(trainer, trainer.step(part))
            wanted = torch.load(arguments.folder / f"step_{step}.pt")
            found = list(errors(values, wanted))
            first = next((pair for pair in found if pair[0] > arguments.rtol), None)
            largest_error = max(found, key=lambda pair: pair[0])
            report.write(json.dumps({"step": step, "largest": largest_error, "first": first}) + "\n")


def reports_in(folder, ranks):
    for rank in range(ranks):
        with open(folder / f"rank_{rank}.jsonl") as report:
            for line in report:
                yield json.loads(line) | {"rank": rank}


def verify(words):
    arguments = arguments_of(words)
    if arguments.folder:
        train_as_rank(arguments)
        return 0
    if shoal.world_size() > 1:
        wrong_use("this is a rank of a job; call it outside of one, with -n RANKS, and it starts its own")
    with tempfile.TemporaryDirectory(prefix="shoal_verify_") as name:
        folder = pathlib.Path(name)
        allowed = train_alone(arguments, folder)
        done = subprocess.run(
            [_command.path(), "run", "-n", str(arguments.n), sys.executable, "-m", "shoal.verify"]
            + [*words, f"--folder={folder}", f"--rtol={allowed!r}"],
            env=_command.environment(),
        )
        if done.returncode:
            print(f"the ranks ended with code {done.returncode}: nothing to compare")
            return 1
        reports = sorted(reports_in(folder, arguments.n), key=lambda report: (report["step"], report["rank"]))
    first = next((report for report in reports if report["first"]), None)
    if first:
        error, what = first["first"]
        where = f"after step {first['step']}, on rank {first['rank']}"
        print(f"the first that differs: {what}, {where}, by {error:.1e}")
    worst = max(reports, key=lambda report: report["largest"][0])
    error, what = worst["largest"]
    print(
        f"largest error {error:.1e}, of {what}, after step {worst['step']}; {allowed:.0e} is allowed"
        if error
        else f"largest error 0; {allowed:.0e} is allowed"
    )
    return int(first is not None)


if __name__ == "__main__":
    sys.exit(verify(sys.argv[1:]))
