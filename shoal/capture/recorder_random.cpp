// SPDX-License-Identifier: Apache-2.0
// Random operators as nodes: what capture/random.h makes of a call, with the graph as the source of numbers.
#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "shoal/aten/operators.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/operands.h"
#include "shoal/capture/random.h"
#include "shoal/capture/recorder.h"

namespace shoal::capture {

using ir::ValueId;
using Stack = torch::jit::Stack;

class Recorder::NodeDraws final : public Draws {
 public:
  NodeDraws(Recorder& recorder, c10::Device device) : recorder_(recorder), device_(device) {}

  at::Tensor draw(const Draw& draw) override {
    auto arguments = draw.arguments;
    if (draw.probabilities.defined()) arguments[0].value = recorder_.value_of(draw.probabilities);
    const auto meta = at::empty(draw.shape, at::TensorOptions(at::kMeta).dtype(aten::to_torch(draw.dtype)));
    return add(draw.op, std::move(arguments), {meta}).at(0);
  }

  std::vector<at::Tensor> draw_whole(const c10::OperatorHandle& op, const Stack& in) override {
    const auto& schema = op.schema();
    std::vector<ir::Argument> arguments = recorder_.arguments_of(schema, in);
    std::vector<at::Tensor> metas;
    {
      const Ordinals as_before;  // ATen may be asked for the shape by a draw from the default generator
      metas = recorder_.metas_of(op, arguments, device_);
    }
    for (auto& meta : metas) meta = at::empty(meta.sizes(), meta.options().device(at::kMeta));  // contiguous
    arguments.insert(arguments.begin(), {"op", aten::name_of(schema)});
    return add("shoal::random", std::move(arguments), metas);
  }

  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) override {
    recorder_.untraceable(what, remedy);
  }

 private:
  std::vector<at::Tensor> add(const std::string& op, std::vector<ir::Argument> arguments,
                              const std::vector<at::Tensor>& metas) {
    for (const char* name : {"seed", "step", "ordinal"})
      for (const auto& argument : arguments)
        SHOAL_CHECK(argument.name != name, InvalidInput, "capture: ", op, " has an argument ", name,
                    " of its own; give it another name");
    for (const char* name : {"seed", "step"}) arguments.push_back({name, recorder_.scalar(name)});
    arguments.push_back({"ordinal", recorder_.ordinals_.next()});
    std::vector<at::Tensor> tensors;
    for (const auto& output : recorder_.add_node(op, std::move(arguments), metas, device_, true))
      tensors.push_back(recorder_.wrap(output.value()));
    return tensors;
  }

  Recorder& recorder_;
  c10::Device device_;
};

ValueId Recorder::scalar(const char* name) {
  const auto [found, added] = scalars_.try_emplace(name);
  if (added) {
    found->second = captured_.graph.add_source(ir::Role::Scalar, name, ir::contiguous(DType::Int64, {}));
    metas_.push_back(at::empty({}, at::TensorOptions(at::kMeta).dtype(at::kLong)));
    devices_.emplace_back(at::kCPU);
    from_inputs_.push_back(false);
  }
  return found->second;
}

void Recorder::record_random(const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  NodeDraws draws(*this, device_of(schema, torch::jit::last(stack, schema.arguments().size())));
  call_random(op, stack, draws);
}

}  // namespace shoal::capture
