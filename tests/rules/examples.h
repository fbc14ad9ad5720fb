// SPDX-License-Identifier: Apache-2.0
// What the rules are proved on: nodes of captured steps, and some that no capture on a CPU makes.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal {

using Outputs = std::vector<std::optional<at::Tensor>>;

// One node, with what it read and made.
struct Case {
  const ir::Graph* graph;
  const ir::Node* node;
  std::vector<at::Tensor> in;  // as ir::inputs_of
  Outputs out;                 // by output

  std::string text() const;
};

const std::vector<Case>& examples();  // made once

// The node on these tensors; its outputs have the types that the graph says, or those of a part. Nothing
// where the op refuses.
std::optional<Outputs> run(const ir::Graph& graph, const ir::Node& node, const std::vector<at::Tensor>& in);

}  // namespace shoal
