// SPDX-License-Identifier: Apache-2.0
#include "shoal/aten/interpreter.h"

#include <utility>

#include "shoal/aten/operators.h"
#include "shoal/base/error.h"

namespace shoal::aten {

std::vector<c10::IValue> call(const ir::Node& node, const std::function<at::Tensor(ir::ValueId)>& tensor_of) {
  const auto op = find_operator(node.op);
  SHOAL_CHECK(op, InvalidInput, "operator ", node.op, " is not loaded: load the library that registers it");
  const auto& schema = op->schema();
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < node.arguments.size(); ++i)
    stack.push_back(ivalue_of(node.arguments[i].value, schema.arguments().at(i), tensor_of));
  op->callBoxed(stack);
  std::vector<c10::IValue> flat;
  for (auto& value : stack) {
    if (!value.isTensorList()) {
      flat.push_back(std::move(value));
      continue;
    }
    for (const at::Tensor& tensor : value.toTensorVector()) flat.emplace_back(tensor);
  }
  return flat;
}

at::Tensor Interpreter::value(ir::ValueId id) {
  // Depth first with a stack of our own: a graph is deeper than a thread's stack allows.
  std::vector<ir::ValueId> wanted = {id};
  while (!wanted.empty()) {
    const ir::ValueId next = wanted.back();
    if (known_.contains(next)) {
      wanted.pop_back();
      continue;
    }
    const auto producer = graph_->at(next).producer;
    SHOAL_CHECK(producer, Internal, "interpreter: source %", next.index, " is not bound");
    const ir::Node& node = graph_->at(*producer);
    bool ready = true;
    for (const ir::ValueId input : ir::inputs_of(node)) {
      if (known_.contains(input)) continue;
      wanted.push_back(input);
      ready = false;
    }
    if (!ready) continue;
    const auto results = call(node, [&](ir::ValueId input) { return known_.at(input); });
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i]) known_[*node.outputs[i]] = results.at(i).toTensor();
  }
  return known_.at(id);
}

}  // namespace shoal::aten
