#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step of Hugging Face's GPT-2 in Python: Shoal against PyTorch with a fused AdamW, eager
and under torch.compile, in turns.

    .venv/bin/python bench/python_step.py [--preset release] [--pairs 30] [--threads 2] [--precision bfloat16]
        [--device cuda] [large|small|start|gpt2]

`large` is 6 layers of width 384 on 8 × 128 tokens, `small` 2 layers of width 64 on 4 × 32, `gpt2` that
model as published on 8 × 1,024, which takes a GPU; `start` is the
time from starting Python to the end of the second step, each in a process of its own, with nothing kept of
earlier compilations. A line has the median of the ratios Shoal / PyTorch and its 95 % interval, then both
medians in milliseconds. No dropout: all then compute the same. In bfloat16 PyTorch has its autocast; on ranks
DDP over Gloo, each a part of the batch:

    build/release/shoal run -n 2 .venv/bin/python bench/python_step.py --threads 1 --precision bfloat16 large
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

from paired import interval

ROOT = pathlib.Path(__file__).resolve().parents[1]
RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
SHAPES = {
    "large": (6, 384, 6, 8, 128, 8192),
    "small": (2, 64, 2, 4, 32, 512),
    "gpt2": (12, 768, 12, 8, 1024, 50257),
}


def gpt2(layers, width, heads, length, vocabulary):
    import transformers

    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def make(shape, device):
    import torch

    layers, width, heads, rows, length, vocabulary = SHAPES[shape]
    torch.manual_seed(0)
    model = gpt2(layers, width, heads, length, vocabulary).train().to(device)
    ids = torch.randint(0, vocabulary, (rows, length))[RANK * rows // RANKS : (RANK + 1) * rows // RANKS]
    ids = ids.to(device)
    return (
        model,
        {"input_ids": ids, "labels": ids},
        torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True),
    )


def torch_step(shape, precision, device, compiles=False):
    import torch

    model, batch, optimizer = make(shape, device)
    if RANKS > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    if compiles:
        model = torch.compile(model)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def shoal_step(shape, precision, device):
    import shoal

    model, batch, optimizer = make(shape, device)
    trainer = shoal.Trainer(model, optimizer, parallelism=shoal.Parallelism(precision=precision))
    return lambda: trainer.step(batch).loss


def compiled_step(shape, precision, device):
    return torch_step(shape, precision, device, compiles=True)


STEPS = {"shoal": shoal_step, "eager": torch_step, "torch.compile": compiled_step}


def seconds(act):
    if RANKS > 1:
        import torch

        torch.distributed.barrier()
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def report(name, pairs):
    """Median of the ratios with the interval that order statistics give it."""
    middle, low, high = interval([ours / theirs for ours, theirs in pairs])
    ours, theirs = (interval(side)[0] * 1e3 for side in zip(*pairs, strict=True))
    if RANK > 0:
        return
    print(
        f"{name}: {middle:.3f} [{low:.3f}, {high:.3f}] of its time, "
        f"{ours:.2f} ms and {theirs:.2f} ms, {len(pairs)} pairs",
        flush=True,
    )


def report_all(what, rounds):
    for name in [name for name in STEPS if name != "shoal"]:
        report(f"{what}, to {name}", [(timed["shoal"], timed[name]) for timed in rounds])


def compare_steps(shape, count, precision, device):
    steps = {name: make_step(shape, precision, device) for name, make_step in STEPS.items()}
    repeats = 20 if shape == "small" else 1
    for _ in range(3):
        losses = {name: step() for name, step in steps.items()}
    bound = 1e-3 if precision == "float32" else 0.05
    assert RANKS > 1 or max(losses.values()) - min(losses.values()) < bound, losses
    rounds = []
    for turn in range(count):
        order = list(steps) if turn % 2 else list(steps)[::-1]
        rounds.append(
            {
                name: seconds(lambda step=steps[name]: [step() for _ in range(repeats)]) / repeats
                for name in order
            }
        )
    report_all(shape, rounds)


def compare_starts(arguments):
    environment = os.environ | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    rounds = []
    for _ in range(max(5, arguments.pairs // 3)):
        timed = {}
        for name in STEPS:
            command = [
                sys.executable,
                __file__,
                "--preset",
                arguments.preset,
                "--precision",
                arguments.precision,
            ]
            command += ["--device", arguments.device, "--once", name]
            timed[name] = seconds(
                lambda command=command: subprocess.run(command, check=True, env=environment)
            )
        rounds.append(timed)
    report_all("start", rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="*", default=["large", "small", "start"])
    parser.add_argument("--preset", default="release")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--once", choices=STEPS, help="two steps of that side, for `start`")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "build" / arguments.preset / "python"))
    import torch

    torch.set_num_threads(arguments.threads)
    if RANKS > 1:
        torch.distributed.init_process_group("gloo")
    if arguments.once:
        step = STEPS[arguments.once]("small", arguments.precision, arguments.device)
        step()
        step()
        return
    for what in arguments.what:
        if what == "start":
            compare_starts(arguments)
        else:
            compare_steps(what, arguments.pairs, arguments.precision, arguments.device)


if __name__ == "__main__":
    main()
