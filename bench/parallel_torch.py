# SPDX-License-Identifier: Apache-2.0
"""A rank of PyTorch's for bench/parallel.py: bench/parallel_torch.py NAME SHAPE.

NAME: ddp, fsdp2 (parameters are gathered again for backward), fsdp2_kept. The optimizer is the fused AdamW
where `shape` does not say otherwise. Speaks as bench/parallel.cpp does.
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


def memory(what):
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith(what + ":")]
    return int(line.split()[1]) * 1024


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


WRAPPED = {"ddp": ddp, "fsdp2": fsdp2, "fsdp2_kept": lambda model: fsdp2(model, reshard=False)}


def main():
    name, shape = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["BENCH_STORE"], rank=rank, world_size=size)
    at_start = memory("VmRSS")
    torch.manual_seed(1)
    model = WRAPPED[name](Gpt2(shape))
    torch.manual_seed(2 + dist.get_rank())
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
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
            last = loss.item()
        timed = {"seconds": time.perf_counter() - begin, "cpu": cpu_seconds() - cpu}
        mean = torch.tensor(last)
        dist.all_reduce(mean)
        timed |= {"loss": mean.item() / dist.get_world_size(), "bytes": memory("VmHWM") - at_start}
        print(json.dumps(timed), flush=True)
        if is_first:
            with open("/proc/self/clear_refs", "w") as peak:
                peak.write("5")
            is_first = False
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
