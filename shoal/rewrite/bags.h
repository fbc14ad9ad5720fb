// SPDX-License-Identifier: Apache-2.0
// An EmbeddingBag whose bags are of one length is a lookup and a sum:
//
//   %2 = view(%ids, [-1])                                          ids: [B, L]
//   %4, … = _embedding_bag(weight=%0, indices=%2, offsets=%c)      ─►  %4 = sum(embedding(%0, %ids), dim=[1])
//   %9 = _embedding_bag_backward(grad=%8, …)                       ─►  %9 = embedding_dense_backward(expand(%8), %ids)
//
// Another is one over the rows of its ids:
//
//   %4, … = _embedding_bag(weight=%0, indices=%2, offsets=%3)      ─►  %4, … = _embedding_bag(weight=embedding(%0, %2),
//                                                                          indices=arange, offsets=%3)
#pragma once

#include <string>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// Of a captured graph: those of these parameters. What scales gradients by how often an id is there stays as it is.
ir::Graph bags_as_lookups(ir::Graph graph, const std::vector<std::string>& parameters);

}  // namespace shoal::rewrite
