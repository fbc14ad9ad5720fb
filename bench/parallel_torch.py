# SPDX-License-Identifier: Apache-2.0
"""A rank of PyTorch's for bench/parallel.py: bench/parallel_torch.py NAME SHAPE.

NAME: ddp, fsdp2 (parameters are gathered again for backward), fsdp2_kept; torch_gpipe, torch_1f1b: a stage a
rank by torch.distributed.pipelining; torch_interleaved_1f1b, torch_zbv: two. These have two weights where the
model ties one, which they do not do. The optimizer is the fused AdamW where `shape` does not say otherwise.
Speaks as bench/parallel.cpp does.
"""

import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
from step_torch import Gpt2
from torch.nn import functional as F


def memory(key, file="smaps_rollup"):
    with open("/proc/self/" + file) as lines:
        [line] = [line for line in lines if line.startswith(key + ":")]
    return int(line.split()[1]) * 1024


def peak_memory():
    """Pages that other ranks have too count in parts."""
    return memory("VmHWM", "status") - (memory("Rss") - memory("Pss"))


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def ddp(model):
    return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


def fsdp2(model, reshard=True):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.h:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    return fully_shard(model, mesh=mesh, reshard_after_forward=reshard)


class Stage(torch.nn.Module):
    """One of several, cut where work is balanced: the head counts as much as it multiplies."""

    def __init__(self, whole, number, count):
        super().__init__()
        blocks = len(whole.h)
        head = whole.wte.weight.numel() / (12 * whole.wte.weight.size(1) ** 2)  # in blocks
        begin, end = (min(blocks, round(at * (blocks + head) / count)) for at in (number, number + 1))
        self.h = whole.h[begin:end]
        self.embeddings = torch.nn.ModuleList([whole.wte, whole.wpe] if number == 0 else [])
        self.is_last = number == count - 1
        if self.is_last:
            self.ln_f = whole.ln_f
            self.head = torch.nn.Parameter(whole.wte.weight.detach().clone())

    def forward(self, x):
        if self.embeddings:
            tokens, positions = self.embeddings
            x = tokens(x) + positions(torch.arange(x.size(1)))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.head) if self.is_last else x


def loss_of(logits, y):
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())


class Pipeline:
    """step(x, y): forward and backward of all micro-batches; the loss on the rank of the last stage."""

    def __init__(self, name, shape):
        from torch.distributed import pipelining

        rank, ranks = dist.get_rank(), dist.get_world_size()
        schedule, numbers = {
            "torch_gpipe": (pipelining.ScheduleGPipe, [rank]),
            "torch_1f1b": (pipelining.Schedule1F1B, [rank]),
            "torch_interleaved_1f1b": (pipelining.ScheduleInterleaved1F1B, [rank, ranks + rank]),
            "torch_zbv": (pipelining.ScheduleZBVZeroBubble, [rank, 2 * ranks - 1 - rank]),
        }[name]
        count = len(numbers) * ranks
        whole = Gpt2(shape)
        self.stages = torch.nn.ModuleList([Stage(whole, number, count) for number in numbers])
        self.is_first, self.is_last = 0 in numbers, count - 1 in numbers
        stages = [
            pipelining.PipelineStage(stage, number, count, torch.device("cpu"))
            for stage, number in zip(self.stages, numbers, strict=True)
        ]
        self.schedule = schedule(
            stages if len(stages) > 1 else stages[0], shape["microbatches"], loss_fn=loss_of
        )

    def parameters(self):
        return self.stages.parameters()

    def step(self, x, y):
        losses = []
        self.schedule.step(
            *([x] if self.is_first else []), **({"target": y, "losses": losses} if self.is_last else {})
        )
        # The mean over ranks is what is asked for.
        return torch.stack(losses).mean() * dist.get_world_size() if self.is_last else torch.zeros(())


WRAPPED = {"ddp": ddp, "fsdp2": fsdp2, "fsdp2_kept": lambda model: fsdp2(model, reshard=False)}


def main():
    name, shape = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["BENCH_STORE"], rank=rank, world_size=size)
    at_start = memory("Pss")
    torch.manual_seed(1)
    is_staged = name not in WRAPPED
    model = Pipeline(name, shape) if is_staged else WRAPPED[name](Gpt2(shape))
    torch.manual_seed(2 if is_staged else 2 + dist.get_rank())
    size = (shape["batch"], shape["sequence"])
    x, y = (torch.randint(shape["vocabulary"], size) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=shape.get("fused", True))
    is_first = True
    for line in sys.stdin:
        if line.strip() == "profile":
            print("{}", flush=True)
            continue
        dist.barrier()
        begin, cpu = time.perf_counter(), cpu_seconds()
        for _ in range(int(line)):
            optimizer.zero_grad()
            if is_staged:
                loss = model.step(x, y)
            else:
                loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
                loss.backward()
            optimizer.step()
            last = loss.item()
        timed = {"seconds": time.perf_counter() - begin, "cpu": cpu_seconds() - cpu}
        mean = torch.tensor(last)
        dist.all_reduce(mean)
        timed |= {"loss": mean.item() / dist.get_world_size(), "bytes": peak_memory() - at_start}
        print(json.dumps(timed), flush=True)
        if is_first:
            with open("/proc/self/clear_refs", "w") as peak:
                peak.write("5")
            is_first = False
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
