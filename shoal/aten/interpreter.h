// SPDX-License-Identifier: Apache-2.0
// Evaluates values of a graph one by one through the dispatcher: the reference that everything else is held
// to, and what computes guards. Slow and simple; steps run in runtime/executor.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::aten {

// What a node returns, tensors in lists flattened, for these arguments.
std::vector<c10::IValue> call(const ir::Node& node, const std::function<at::Tensor(ir::ValueId)>& tensor_of);

class Interpreter {
 public:
  explicit Interpreter(const ir::Graph& graph) : graph_(&graph) {}  // borrows the graph
  void bind(ir::ValueId source, at::Tensor tensor) { known_[source] = std::move(tensor); }
  // Computes what it takes and keeps it. Throws Internal for a source that is not bound.
  at::Tensor value(ir::ValueId id);

 private:
  const ir::Graph* graph_;
  std::unordered_map<ir::ValueId, at::Tensor> known_;
};

}  // namespace shoal::aten
