# SPDX-License-Identifier: Apache-2.0
"""Trains with and without offload, alone or as a rank of test_offload.py's job: not a bit differs."""

import pathlib
import sys

import recompute_on_ranks
import torch

import shoal

ALL = "parameters optimizer_state gradients activations least=1"


def compare(name, model, offload, folder, **degrees):
    plain = recompute_on_ranks.trained(name, model(), "none", **degrees)
    again = recompute_on_ranks.trained(
        name, model(), "none", offload=offload, offload_folder=folder, **degrees
    )
    for key, tensor in plain.items():
        assert torch.equal(tensor, again[key]), f"{name}, {offload}, {degrees}: {key}"


def main(folder):
    def gpt2():
        torch.manual_seed(1)
        return recompute_on_ranks.gpt2().train()

    ways = [{}] if shoal.world_size() == 1 else [{}, {"shard": -1}, {"shard": -1, "zero_stage": 2}]
    for degrees in ways:
        compare("gpt2", gpt2, ALL, folder, **degrees)
    compare("gpt2", gpt2, "optimizer_state", folder, **ways[-1])
    print("all bits are equal")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
