# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of bench/checkpoint: the stall of torch.distributed.checkpoint.async_save."""

import argparse
import shutil
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

MATRIX, MATRICES, STATES = 512 * 2048, 25, 3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--saves", type=int, default=100)
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()
    sizes = [MATRIX - 10_000 * (matrix % 2) for _ in range(STATES) for matrix in range(MATRICES)]
    state = {f"tensor.{i}": torch.rand(size) for i, size in enumerate(sizes)}
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    stalls = []
    for save in range(options.saves):
        folder = f"{options.folder}/{save}"
        begin = time.perf_counter()
        written = dcp.async_save(state, checkpoint_id=folder)
        stalls.append((time.perf_counter() - begin) * 1e3)
        written.result()
        shutil.rmtree(folder)
    dist.destroy_process_group()
    shutil.rmtree(options.folder, ignore_errors=True)
    stalls.sort()
    p99 = stalls[-(-99 * len(stalls) // 100) - 1]
    print(
        f"{'torch: stall of dcp.async_save':34} median {statistics.median(stalls):6.1f}  p99 {p99:6.1f}  "
        f"min {stalls[0]:6.1f}  max {stalls[-1]:6.1f} ms  runs {len(stalls)}"
    )


if __name__ == "__main__":
    main()
