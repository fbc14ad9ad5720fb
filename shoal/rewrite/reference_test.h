// SPDX-License-Identifier: Apache-2.0
// Runs small graphs on strided tensors of doubles, as ATen lays them out: views share memory, sums go through
// memory in its order, so a rewrite that changed strides would change bits. For tests only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::rewrite::reference {

struct Tensor {
  ir::TensorType type;
  std::int64_t offset = 0;
  std::shared_ptr<std::vector<double>> memory;  // shared with its views
};

Tensor make(ir::TensorType type);                    // zeros; needs dense or row-major strides
std::vector<double> elements(const Tensor& tensor);  // in row-major order of its shape

using Values = std::vector<std::optional<Tensor>>;  // by ValueId

// The node's output. Knows the ops of the switch in reference_test.cpp; throws Internal for others.
Tensor evaluate(const ir::Node& node, const Values& values);

// All results by role and name, from sources filled with small numbers, negative zeros among them. Throws
// Internal where an output's type is not what the graph says.
std::map<std::string, std::vector<double>> run(const ir::Graph& graph);

}  // namespace shoal::rewrite::reference
