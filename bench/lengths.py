#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batches of many lengths, as a padding collator makes them: Shoal against PyTorch with a fused AdamW.

    .venv/bin/python bench/lengths.py [--preset release] [--steps 500] [--lengths 40] [--rounds 5]
        [--threads 2] [bert|llama|any]

A run is a process of its own that trains so many steps, captures included; sides take turns. `bert` is 4
layers of width 128 on 8 sequences, `llama` 2 layers of width 64 on 4, each batch as long as one of 40 lengths
from 16 to 128; `any` is that Llama where every batch has a length of its own, as episodes have. A line has
the median of the ratios Shoal / PyTorch of the time of a run, then of the process's peak of resident memory,
then of how much that is above what it was with the model and libraries alone. No dropout: both then compute
the same.
"""

import argparse
import json
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
LONGEST = 128


def make(name):
    import torch
    import transformers

    torch.manual_seed(0)
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=2000,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=512,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return transformers.BertForSequenceClassification(config).train()
    config = transformers.LlamaConfig(
        vocab_size=2000,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        max_position_embeddings=4096,
    )
    return transformers.LlamaForCausalLM(config).train()


def batches(name, steps, lengths):
    """Batches of so many lengths; the shorter half of the rows is padded."""
    import torch

    draw = random.Random(0)
    generator = torch.Generator().manual_seed(0)
    sizes = [16 + i for i in range(steps)] if name == "any" else draw.sample(range(16, LONGEST + 1), lengths)
    rows = 8 if name == "bert" else 4
    for step in range(steps):
        length = sizes[step] if name == "any" else draw.choice(sizes)
        ids = torch.randint(0, 2000, (rows, length), generator=generator)
        mask = torch.ones_like(ids)
        mask[: rows // 2, length * 3 // 4 :] = 0
        labels = torch.randint(0, 2, (rows,), generator=generator) if name == "bert" else ids
        yield {"input_ids": ids, "attention_mask": mask, "labels": labels}


def plain_step(model, optimizer):
    def step(batch):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def shoal_step(model, optimizer):
    import shoal

    trainer = shoal.Trainer(model, optimizer)
    return lambda batch: trainer.step(batch).loss


STEPS = {"shoal": shoal_step, "torch": plain_step}


def resident_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def once(side, name, arguments):
    import torch

    model = make(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    given = list(batches(name, arguments.steps, arguments.lengths))
    if side == "shoal":
        import shoal  # noqa: F401
    before = resident_mib()
    step = STEPS[side](model, optimizer)
    begin = time.perf_counter()
    for batch in given:
        loss = step(batch)
    took = time.perf_counter() - begin
    peak = resident_mib()
    print(json.dumps({"seconds": took, "peak": peak, "above": peak - before, "loss": loss}))


def run(side, name, arguments):
    command = [sys.executable, __file__, name, "--once", side]
    for option in ("preset", "steps", "lengths", "threads"):
        command += [f"--{option}", str(getattr(arguments, option))]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(name, arguments):
    pairs = []
    for number in range(arguments.rounds):
        sides = sorted(STEPS, reverse=number % 2 == 1)
        of = {side: run(side, name, arguments) for side in sides}
        assert abs(of["shoal"]["loss"] - of["torch"]["loss"]) < 1e-2, of
        pairs.append((of["shoal"], of["torch"]))

    def said(key, unit):
        ratios = [ours[key] / theirs[key] for ours, theirs in pairs]
        ours, theirs = (statistics.median(side[key] for side in sides) for sides in zip(*pairs, strict=True))
        low, high = min(ratios), max(ratios)
        interval = f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]"
        return f"{interval} of PyTorch's ({ours:.1f} and {theirs:.1f} {unit})"

    print(
        f"{name}: time {said('seconds', 's')}, memory {said('peak', 'MiB')}, "
        f"above the start {said('above', 'MiB')}, {len(pairs)} rounds",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="*", default=["bert", "llama", "any"])
    parser.add_argument("--preset", default="release")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--lengths", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--once", choices=STEPS, help="one run of that side")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "build" / arguments.preset / "python"))
    for name in arguments.what:
        if not arguments.once:
            compare(name, arguments)
            continue
        import torch

        torch.set_num_threads(arguments.threads)
        once(arguments.once, name, arguments)


if __name__ == "__main__":
    main()
