// SPDX-License-Identifier: Apache-2.0
// Gradients of one of several micro-batches, added to what those before have left. What normalises them is
// known when all have run, so each counts by its weight, and the last divides by the sum of the weights:
//
//   before                        after
//   return loss "loss" %7,        %9 = gradient "w"                          the sum so far
//     gradient "w" %8             %13, = shoal::accumulate(sums=[%9], gradients=[%8], keep=%10, weight=%11,
//                                          divisor=%12) @update
//                                 return loss "loss" %7, gradient "w" %13, output "loss_count" %6
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/compile/normaliser.h"
#include "shoal/ir/graph.h"
#include "shoal/rewrite/precision.h"

namespace shoal::compile {

// Scalars f64: 0 in the first micro-batch, else 1; how much this one counts; what all together are divided by
// in the last one, else 1.
inline constexpr std::string_view kKeep = "accumulate.keep", kWeight = "accumulate.weight",
                                  kDivisor = "accumulate.divisor";
// Of Normaliser::Kind::Value: the result that says how much.
inline constexpr std::string_view kCount = "loss_count";

ir::Graph append_accumulation(ir::Graph graph, const Normaliser& normaliser);

// The sums alone, as they come in and go out, for an update to be appended to. `master`: gradients of bfloat16
// parameters without a float32 copy are float32 (rewrite/precision.h).
ir::Graph graph_of_sums(const std::vector<std::pair<std::string, ir::TensorType>>& parameters,
                        rewrite::Master master = rewrite::Master::Float32);
// Those of a graph with accumulation.
ir::Graph graph_of_sums(const ir::Graph& microbatch, rewrite::Master master);

}  // namespace shoal::compile
