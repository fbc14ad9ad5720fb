#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training step of Hugging Face's models over two ranks of this host, a thread each: placements that Shoal
finds, the plans of recipes/plans, data parallel and ZeRO-3, against PyTorch's DTensor, in turns.

    .venv/bin/python bench/tensor_parallel.py [SHAPE ...] [--preset release] [--rounds 20] [--only NAMES]

DTensor is `parallelize_module` with Megatron's plan: Hugging Face's Llama as it is, and a GPT-2 of the same
size whose products are nn.Linear, queries, keys and values apart, as parallelize_module knows no Conv1D. All
have the whole batch on each rank, but data parallel and ZeRO-3, which have half of it. A line has the median
of the ratios to DTensor's step, with its 95 % interval, and the medians in milliseconds.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import parallel
import python_step

ROOT = pathlib.Path(__file__).resolve().parents[1]
OURS = ["found", "tensor", "sequence", "data_parallel", "zero3"]
SHAPES = {  # layers, width, heads, samples, length, vocabulary
    "gpt2_tiny": ("gpt2", 2, 64, 4, 4, 32, 512),
    "gpt2_12m": ("gpt2", 5, 384, 6, 4, 128, 8192),
    "llama_tiny": ("llama", 2, 64, 4, 4, 32, 512),
    "llama_12m": ("llama", 5, 384, 6, 4, 128, 8192),
}


MLP = {"gpt2": ["up", "down"], "llama": ["gate", "up", "down"]}


def model_of(shape):
    import transformers

    kind, layers, width, heads, _, length, vocabulary = shape
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            max_position_embeddings=length,
            use_cache=False,
        )
        return transformers.LlamaForCausalLM(config)
    return python_step.gpt2(layers, width, heads, length, vocabulary)


def gpt2_of_linear(shape):
    """What parallelize_module can cut, with heads counted by what a rank has."""
    import torch
    from step_torch import Gpt2
    from torch.nn import functional as F

    _, layers, width, heads, _, length, vocabulary = shape

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))

        def forward(self, x):
            q, k, v = (
                part(x).unflatten(-1, (-1, width // heads)).transpose(1, 2)
                for part in (self.q, self.k, self.v)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o(y.transpose(1, 2).flatten(2))

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.attention = Attention()
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            x = x + self.attention(self.ln_1(x))
            return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    model = Gpt2({"width": width, "vocabulary": vocabulary, "sequence": length, "heads": heads, "layers": 0})
    model.h = torch.nn.ModuleList(Block() for _ in range(layers))
    # The head that the table is tied to, as a module that a plan can name.
    model.head = torch.nn.Linear(width, vocabulary, bias=False)
    model.head.weight = model.wte.weight

    def forward(tokens):
        x = model.wte(tokens) + model.wpe(torch.arange(tokens.size(1)))
        for block in model.h:
            x = block(x)
        return model.head(model.ln_f(x))

    model.forward = forward
    return model


def dtensor_step(shape, ids):
    """Columns, then rows; the table and the head by the vocabulary, the loss over the cut logits."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )
    from torch.nn import functional as F

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["BENCH_STORE"], rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    kind = shape[0]
    torch.manual_seed(1)
    model = model_of(shape) if kind == "llama" else gpt2_of_linear(shape)
    blocks, attention, mlp, rest = (
        ("model.layers.*", "self_attn.{}_proj", "mlp.{}_proj", ("model.embed_tokens", "lm_head"))
        if kind == "llama"
        else ("h.*", "attention.{}", "{}", ("wte", "head"))
    )
    names = [attention.format(part) for part in "qkvo"] + [mlp.format(part) for part in MLP[kind]]
    plan = {f"{blocks}.{name}": ColwiseParallel() for name in names}
    for name in (attention.format("o"), mlp.format("down")):
        plan[f"{blocks}.{name}"] = RowwiseParallel()
    plan[rest[0]] = RowwiseParallel(input_layouts=Replicate())
    plan[rest[1]] = ColwiseParallel(use_local_output=False)
    parallelize_module(model, mesh, plan)
    if kind == "gpt2":
        model.head.weight = model.wte.weight
    # AdamW knows no two kinds of tensors at once.
    kinds = [[], []]
    for parameter in model.parameters():
        kinds[isinstance(parameter, DTensor)].append(parameter)
    optimizers = [torch.optim.AdamW(kind, lr=1e-3, fused=True) for kind in kinds]

    def step():
        for optimizer in optimizers:
            optimizer.zero_grad()
        logits = model(input_ids=ids).logits if kind == "llama" else model(ids)
        with loss_parallel():
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.full_tensor().item() if hasattr(loss, "full_tensor") else loss.item()

    return step, dist.barrier


def shoal_step(name, shape, ids):
    import torch
    from torch.nn import functional as F

    import shoal

    torch.manual_seed(1)
    model = model_of(shape)
    plan = ROOT / "recipes/plans" / f"{shape[0]}_{name}.plan"
    parallelism = {
        "found": lambda: shoal.Parallelism(tensor=2),
        "tensor": lambda: shoal.Parallelism(tensor=2, plan=plan),
        "sequence": lambda: shoal.Parallelism(tensor=2, plan=plan),
        "data_parallel": lambda: shoal.Parallelism(replicate=2),
        "zero3": lambda: shoal.Parallelism(shard=2),
    }[name]()
    trainer = shoal.Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        lambda model, ids: F.cross_entropy(
            model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        ),
        parallelism=parallelism,
    )
    mine = ids[shoal.samples_of(len(ids), parallelism)]
    return lambda: trainer.step(mine).loss, lambda: None


def rank(name, shape):
    """Speaks as bench/parallel.cpp does."""
    import torch
    from parallel_torch import cpu_seconds

    torch.set_num_threads(1)
    _, _, _, _, samples, length, vocabulary = shape
    torch.manual_seed(2)
    ids = torch.randint(vocabulary, (samples, length))
    step, barrier = dtensor_step(shape, ids) if name == "dtensor" else shoal_step(name, shape, ids)
    for line in sys.stdin:
        barrier()
        begin, cpu = time.perf_counter(), cpu_seconds()
        for _ in range(int(line)):
            loss = step()
        timed = {"seconds": time.perf_counter() - begin, "cpu": cpu_seconds() - cpu}
        print(json.dumps(timed | {"loss": loss, "bytes": 0}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", choices=[[], *SHAPES])
    parser.add_argument("--preset", default="release")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", type=lambda text: text.split(","), default=OURS)
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT / "build" / arguments.preset / "python")
    command = [sys.executable, __file__, "--rank"]
    for name in arguments.shapes or SHAPES:
        groups = []
        try:
            for contender in [*arguments.only, "dtensor"]:
                groups.append(parallel.Group(command, contender, SHAPES[name], 2))
                groups[-1].loss = groups[-1].run(3)["loss"]
            steps = max(1, round(0.2 / groups[-1].run(3)["seconds"]))
            for number in range(arguments.rounds):
                for group in groups if number % 2 else groups[::-1]:
                    group.turns.append(group.run(steps))
            for group in groups:
                seconds, cpu = (parallel.median(group.of(what)) for what in ("seconds", "cpu"))
                print(
                    f"{name:10} {group.name:13} {parallel.ratios(group, groups[-1], 'seconds')} of DTensor, "
                    f"{seconds * 1e3:.2f} ms, CPU {cpu * 1e3:.2f} ms; loss {group.loss:.4f}",
                    flush=True,
                )
        finally:
            for group in groups:
                group.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main()
