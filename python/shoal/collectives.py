# SPDX-License-Identifier: Apache-2.0
"""What ranks say to each other: the ten operations for a script's own tensors, and through autograd.

Each is called by all ranks of a group in the same order, under `shoal run`, torchrun or mpirun; `group` is
all ranks of the job unless another is given. Results are new tensors. A script by itself is a group of one.

The gradient is that of the sum of all ranks' losses, and each operation's derivative is another of them:
broadcast and reduce, gather and scatter, all_gather and reduce_scatter, send and receive; all_reduce and
all_to_all are their own. So every rank has to take part in backward: a tensor requires a gradient on all
ranks or on none, and each rank's loss depends on every result, if only by adding result.sum() * 0.

Errors: shoal.InvalidInput where ranks call different things, or on wrong arguments; shoal.PeerLost where a
rank has gone; shoal.Timeout after the group's limit.
"""

from shoal._shoal import _collectives

__all__ = [
    "Group",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "receive",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
]


class Group(_collectives.Group):
    """Ranks of the job that call together, in this order; None: all. Made by exactly those ranks.

    limit: seconds that each wait may take. It lasts as long as the process: make a group once.
    .ranks: of the job; .rank: this process's place among them; len(): how many.
    InvalidInput for a rank that is not there, is named twice, or where this process is not among them.
    """

    def __init__(self, ranks=None, *, limit=300.0):
        super().__init__(ranks, limit)
        _collectives.keep(self)


def all_reduce(tensor, op="sum", group=None):
    """The sum of all ranks' tensors, of one shape; op: "sum", "average", "min" or "max".

    Of min and max the gradient goes to the elements that are it, in equal shares where several ranks have it.
    """
    return _collectives.all_reduce(tensor, op, group)


def broadcast(tensor, root, group=None):
    """The tensor of rank `root` of the group; of the others' only shape and dtype are read."""
    return _collectives.broadcast(tensor, root, group)


def reduce(tensor, root, op="sum", group=None):
    """On `root` what all_reduce gives, elsewhere zeros of that shape."""
    return _collectives.reduce(tensor, root, op, group)


def all_gather(tensor, group=None):
    """The tensors of all ranks, of one shape, joined along dim 0 by rank: [n, …] becomes [ranks × n, …]; one
    without dims is a row."""
    return _collectives.all_gather(tensor, group)


def gather(tensor, root, group=None):
    """On `root` what all_gather gives, elsewhere zeros of that shape."""
    return _collectives.gather(tensor, root, group)


def reduce_scatter(tensor, op="sum", group=None):
    """This rank's part of dim 0, a multiple of the number of ranks, of what all_reduce gives:
    [ranks × n, …] becomes [n, …]."""
    return _collectives.reduce_scatter(tensor, op, group)


def scatter(tensor, root, group=None):
    """This rank's part of dim 0 of root's tensor; of the others' only shape and dtype are read."""
    return _collectives.scatter(tensor, root, group)


def all_to_all(tensor, in_counts=(), out_counts=(), group=None):
    """in_counts[r] rows of dim 0 go to rank r, out_counts[r] come from it, joined by rank; (): equal ones."""
    return _collectives.all_to_all(tensor, list(in_counts), list(out_counts), group)


def send(tensor, to, group=None):
    """A zero without dims, to be added to the loss: its backward receives the gradient of `tensor`.

    Returns when the tensor was received: two ranks that send to each other first wait for ever.
    """
    return _collectives.send(tensor, to, group)


def receive(like, source, group=None):
    """The tensor that rank `source` sends, of the shape and dtype of `like`, whose elements are not read; it
    has a gradient if `like` does."""
    return _collectives.receive(like, source, group)


def barrier(group=None):
    """Returns when all ranks of the group have come to it."""
    _collectives.barrier(group)
