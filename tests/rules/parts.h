// SPDX-License-Identifier: Apache-2.0
// What ranks have of a tensor, and whether what they have made is right.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "examples.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/rules.h"

namespace shoal {

at::Tensor part_of(at::Tensor whole, const sharding::Mesh& mesh, const sharding::Placement& placement,
                   int rank);
// By rank. Summands are random.
std::vector<at::Tensor> parts_of(const at::Tensor& whole, const sharding::Mesh& mesh,
                                 const sharding::Placement& placement);

// What is wrong with what the ranks made of an output; empty if nothing.
std::string wrong(const at::Tensor& whole, const std::vector<at::Tensor>& made, const sharding::Mesh& mesh,
                  const sharding::Placement& placement);

// Memory that nobody has written, and what a library keeps for itself, are not compared.
bool is_opaque(const Case& example, std::size_t output);

// As a rank runs it.
ir::Node local_node(const Case& example, const sharding::Strategy& strategy, const sharding::Mesh& mesh,
                    int rank);

}  // namespace shoal
