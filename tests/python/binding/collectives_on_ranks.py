# SPDX-License-Identifier: Apache-2.0
"""One rank of test_collectives.py's job: each operation and its gradient, beside what one process computes
from the tensors of all ranks."""

import torch

import shoal
from shoal import collectives

RANK, SIZE = shoal.rank(), shoal.world_size()


def inputs(rows=6):
    """Of all ranks, in float64: each rank draws all of them."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(rows, 2, generator=generator, dtype=torch.float64) for _ in range(SIZE)]


def parts(tensor):
    return tensor.chunk(SIZE)


def rotated(wholes):
    return [torch.cat([parts(whole)[rank] for whole in wholes]) for rank in range(SIZE)]


# By name: what is called, and what all ranks then have, from what all had.
CASES = {
    "all_reduce": (collectives.all_reduce, lambda all_: [sum(all_)] * SIZE),
    "all_reduce average": (
        lambda x: collectives.all_reduce(x, op="average"),
        lambda all_: [sum(all_) / SIZE] * SIZE,
    ),
    "all_reduce max": (
        lambda x: collectives.all_reduce(x, "max"),
        lambda all_: [torch.stack(all_).amax(0)] * SIZE,
    ),
    "broadcast": (lambda x: collectives.broadcast(x, root=1), lambda all_: [all_[1]] * SIZE),
    "reduce": (
        lambda x: collectives.reduce(x, root=1),
        lambda all_: [sum(all_) if rank == 1 else all_[rank] * 0 for rank in range(SIZE)],
    ),
    "all_gather": (collectives.all_gather, lambda all_: [torch.cat(all_)] * SIZE),
    "gather": (
        lambda x: collectives.gather(x, root=0),
        lambda all_: [torch.cat(all_) if rank == 0 else torch.cat(all_) * 0 for rank in range(SIZE)],
    ),
    "reduce_scatter": (collectives.reduce_scatter, lambda all_: list(parts(sum(all_)))),
    "scatter": (lambda x: collectives.scatter(x, root=0), lambda all_: list(parts(all_[0]))),
    "all_to_all": (collectives.all_to_all, rotated),
}


def weighted(tensor, rank):
    """A loss that tells elements and ranks apart."""
    return (tensor * torch.arange(1.0, tensor.numel() + 1).view_as(tensor)).sum() * (rank + 1)


for name, (call, formula) in CASES.items():
    mine = inputs()[RANK].requires_grad_()
    out = call(mine)
    weighted(out, RANK).backward()

    wholes = [each.requires_grad_() for each in inputs()]
    outs = formula(wholes)
    unread = sum(0 * whole.sum() for whole in wholes)
    (unread + sum(weighted(each, rank) for rank, each in enumerate(outs))).backward()
    assert torch.allclose(out, outs[RANK], rtol=1e-14, atol=0), name
    assert torch.allclose(mine.grad, wholes[RANK].grad, rtol=1e-14, atol=0), name

# From rank 0 to the last and back through autograd.
mine = inputs()[RANK].requires_grad_()
if RANK == 0:
    (collectives.send(mine, to=SIZE - 1) + 0 * mine.sum()).backward()
    assert torch.equal(mine.grad, 3 * torch.ones_like(mine)), mine.grad
elif RANK == SIZE - 1:
    got = collectives.receive(mine, source=0)
    assert torch.equal(got, inputs()[0])
    (3 * got).sum().backward()

# Uneven parts, integers, no elements.
counts = list(range(SIZE))
out = collectives.all_to_all(torch.full((sum(counts),), RANK), counts, [RANK] * SIZE)
assert out.tolist() == [rank for rank in range(SIZE) for _ in range(RANK)], out
assert collectives.all_reduce(torch.empty(0)).shape == (0,)

# A group of the last two, in the other order.
if RANK >= SIZE - 2:
    pair = collectives.Group([SIZE - 1, SIZE - 2])
    assert (pair.ranks, len(pair), pair.rank) == ([SIZE - 1, SIZE - 2], 2, SIZE - 1 - RANK)
    assert collectives.all_gather(torch.tensor([RANK]), group=pair).tolist() == [SIZE - 1, SIZE - 2]
collectives.barrier()


def refused(says, act):
    try:
        act()
    except shoal.InvalidInput as error:
        assert says in str(error), error
    else:
        raise AssertionError(says)


refused("there is no reduction 'mean'", lambda: collectives.all_reduce(torch.ones(2), "mean"))
refused("has a rank 9, and this job those from 0 to", lambda: collectives.Group([RANK, 9]))
refused("which it is not in", lambda: collectives.Group([(RANK + 1) % SIZE]))
refused("names one twice", lambda: collectives.Group([RANK, RANK]))
refused("the limit is 0", lambda: collectives.Group(limit=0))

print(f"{RANK} of {SIZE}: {len(CASES)} operations are right")
