# SPDX-License-Identifier: Apache-2.0
"""Operators and modules of PyTorch's own lists that Shoal refuses, with the reason. The tests fail when one
of them starts to pass, and when another is refused."""

OPERATORS = {
    "cov": "with some weights ATen writes in place to what backward reads, and autograd refuses",
    "chalf": "complex numbers of half precision: graphs have no such type",
    "sparse.mm.reduce": "sparse tensors",
    "sparse.sampled_addmm": "sparse tensors",
    "to_sparse": "sparse tensors",
}

MODULES = {}
