#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a capture from Python takes: the first step less what a later one takes, of a new trainer each round.

    .venv/bin/python bench/captures.py [--preset release] [--rounds 5] [--threads 2] [gpt2|lstm200|lstm999 …]

`gpt2` is Hugging Face's, 12 layers of width 64; the others are an `nn.LSTMCell` of 16 units that a loop
unrolls over 200 and 999 steps. A line has the median, the least and the most, in milliseconds, then a step's
own.
"""

import argparse
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def gpt2():
    import torch
    import transformers

    config = transformers.GPT2Config(
        vocab_size=1000, n_positions=64, n_embd=64, n_layer=12, n_head=4, eos_token_id=0
    )
    ids = torch.randint(0, 1000, (2, 32))
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids}, None


def lstm(length):
    import torch

    class Unrolled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.LSTMCell(4, 16)
            self.out = torch.nn.Linear(16, 1)

        def forward(self, x):
            state = None
            for step in range(x.shape[1]):
                state = self.cell(x[:, step], state)
            return self.out(state[0])

    return Unrolled(), torch.randn(3, length, 4), lambda model, x: model(x).square().mean()


MODELS = {"gpt2": gpt2, "lstm200": lambda: lstm(200), "lstm999": lambda: lstm(999)}


def seconds(act):
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def once(name):
    """Seconds of a capture, and of a step."""
    import torch

    import shoal

    model, batch, loss = MODELS[name]()
    trainer = shoal.Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss)
    first = seconds(lambda: trainer.step(batch))
    # The 2nd, 4th and 8th step are checked against the model, which runs once more.
    later = [seconds(lambda: trainer.step(batch)) for _ in range(6)]
    step = statistics.median(later[i] for i in (1, 3, 4, 5))
    return first - step, step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(MODELS))
    parser.add_argument("--preset", default="release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "build" / arguments.preset / "python"))
    import torch

    torch.set_num_threads(arguments.threads)
    for name in arguments.what:
        once(name)  # what is made once in a process
        captures, steps = zip(*(once(name) for _ in range(arguments.rounds)), strict=True)
        print(
            f"{name}: {statistics.median(captures) * 1e3:.0f} ms [{min(captures) * 1e3:.0f}, "
            f"{max(captures) * 1e3:.0f}], a step {statistics.median(steps) * 1e3:.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
