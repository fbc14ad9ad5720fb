// SPDX-License-Identifier: Apache-2.0
// Calls whose result, or its shape, depends on data: what depends on the batch alone is computed and guarded,
// checks are made in the step, the rest is refused.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <utility>

#include "shoal/aten/interpreter.h"
#include "shoal/aten/operators.h"
#include "shoal/base/error.h"
#include "shoal/capture/operands.h"
#include "shoal/capture/recorder.h"

namespace shoal::capture {

using ir::ValueId;
using Stack = torch::jit::Stack;

// Least squares by these drivers have residuals where the matrix has full rank, and none elsewhere.
static bool has_residuals_by_rank(c10::ArrayRef<c10::IValue> in) {
  const auto matrix = in[0].toTensor();
  const bool by_rank = in[3].isString() && (in[3].toStringRef() == "gelsd" || in[3].toStringRef() == "gelss");
  return by_rank && matrix.size(-2) > matrix.size(-1);
}

// index.Tensor has the tag always, but only a mask among the indices makes its shape depend on data; likewise
// _ctc_loss, whose lengths are numbers.
bool Recorder::depends_on_data(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> in) {
  if (schema.name() == "aten::_ctc_loss") return schema.overload_name() == "Tensor";
  if (schema.name() == "aten::linalg_lstsq") return has_residuals_by_rank(in);
  if (schema.name() != "aten::index") return true;
  bool mask = false;
  for_each_tensor(in[1], [&](const at::Tensor& index) {
    mask = mask || index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
  });
  return mask;
}

// x[mask] as x[mask.nonzero()…], which is what ATen makes of it: then the mask alone is read, and x may
// depend on parameters.
void Recorder::mask_to_positions(Stack& stack) {
  const auto nonzero = aten::find_operator("aten::nonzero");
  SHOAL_CHECK(nonzero, Internal, "capture: this LibTorch has no aten::nonzero");
  c10::List<std::optional<at::Tensor>> positions;
  for (const auto& item : stack.back().toListRef()) {
    const auto index = item.isTensor() ? item.toTensor() : at::Tensor();
    const bool mask =
        index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
    if (!mask) {
      positions.push_back(index.defined() ? std::optional(index) : std::nullopt);
      continue;
    }
    Stack call_stack = {index};
    call(*nonzero, call_stack);
    const auto found = call_stack.back().toTensor();  // [number, dims of the mask]
    for (std::int64_t dim = 0; dim < index.dim(); ++dim)
      positions.push_back(
          touches_value(found)
              ? wrap(emit_one("aten::select.int",
                              {{"self", value_of(found)}, {"dim", std::int64_t{1}}, {"index", dim}}))
              : found.select(1, dim));
  }
  stack.back() = positions;
}

// masked_select: how many elements it has only the mask says; what is selected may depend on parameters.
void Recorder::record_selection(const c10::OperatorHandle& op, Stack& stack) {
  const auto in = popped(stack, op.schema().arguments().size());
  const at::Tensor self = in[0].toTensor(), mask = in[1].toTensor();
  const auto nonzero = aten::find_operator("aten::nonzero");
  SHOAL_CHECK(nonzero, Internal, "capture: this LibTorch has no aten::nonzero");
  Stack call_stack = {mask};
  call(*nonzero, call_stack);
  auto count = call_stack.back().toTensor().size(0);
  if (count > 0) count *= c10::multiply_integers(at::infer_size(self.sizes(), mask.sizes())) / mask.numel();
  const auto of = value_of(self);
  const auto meta = at::empty({count}, metas_[of.index].options());
  push_results(op,
               add_node(aten::name_of(op.schema()), arguments_of(op.schema(), in), {meta},
                        device_of(op.schema(), in), false),
               stack);
}

// What a condition is in a step that goes well, if it is one of a check: code that raises where it is
// otherwise.
std::optional<bool> Recorder::expected_of(ValueId condition) const {
  const auto producer = captured_.graph.at(condition).producer;
  if (!producer || metas_[condition.index].scalar_type() != at::kBool) return std::nullopt;
  const auto& op = captured_.graph.at(*producer).op;
  // PyTorch has these two for its checks alone: of distributions, of gradients under detect_anomaly.
  if (op == "aten::_is_all_true") return true;
  if (op == "aten::_is_any_true") return false;
  if (!request_.reader || request_.reader() != Reader::Check) return std::nullopt;
  if (op.starts_with("aten::all")) return true;
  if (op.starts_with("aten::any")) return false;
  return std::nullopt;
}

// What `torch.rand([]) < 0.0` is, as models ask whose layers may be dropped: sure without a look at the number.
std::optional<bool> Recorder::certain(ValueId condition) const {
  const auto& graph = captured_.graph;
  const auto argument = [](const ir::Node& node, std::string_view name) -> const ir::Attribute* {
    const auto found = std::ranges::find(node.arguments, name, &ir::Argument::name);
    return found == node.arguments.end() ? nullptr : &found->value;
  };
  const auto number = [](const ir::Attribute* value) -> std::optional<double> {
    if (const auto* real = value ? std::get_if<double>(value) : nullptr) return *real;
    if (const auto* integer = value ? std::get_if<std::int64_t>(value) : nullptr)
      return static_cast<double>(*integer);
    return std::nullopt;
  };
  const auto asked = graph.at(condition).producer;
  if (!asked) return std::nullopt;
  const ir::Node& comparison = graph.at(*asked);
  const auto bound = number(argument(comparison, "other"));
  const auto* self = argument(comparison, "self");
  const auto* drawn = self ? std::get_if<ValueId>(self) : nullptr;
  const auto drawing = drawn ? graph.at(*drawn).producer : std::nullopt;
  if (!bound || !drawing || graph.at(*drawing).op != "shoal::uniform") return std::nullopt;
  const auto from = number(argument(graph.at(*drawing), "from")),
             to = number(argument(graph.at(*drawing), "to"));
  if (!from || !to) return std::nullopt;
  // Rounding may give `to` itself.
  const auto one_of = [](bool yes, bool no) {
    return yes ? std::optional(true) : no ? std::optional(false) : std::nullopt;
  };
  if (comparison.op == "aten::lt.Scalar") return one_of(*to < *bound, *bound <= *from);
  if (comparison.op == "aten::le.Scalar") return one_of(*to <= *bound, *bound < *from);
  if (comparison.op == "aten::gt.Scalar") return one_of(*bound < *from, *to <= *bound);
  if (comparison.op == "aten::ge.Scalar") return one_of(*bound <= *from, *to < *bound);
  return std::nullopt;
}

// A check of values that depend on parameters passes here, and is made in each step instead.
std::optional<bool> Recorder::check(const OpInfo& info, const Stack& in) {
  std::optional<ValueId> condition;
  std::optional<bool> expected;
  std::string otherwise = phase_ == ir::Phase::Backward
                              ? "a check of the backward pass fails: a gradient is not a number, or the loss "
                                "depends on the phases of eigenvectors, "
                              : "a check of values fails, as it would in PyTorch, ";
  if (info.name == "aten::_local_scalar_dense") {
    condition = value_of(in[0].toTensor());
    if (const auto answer = certain(*condition)) return answer;
    if (!from_inputs_[condition->index]) expected = expected_of(*condition);
  } else if (info.name == "aten::equal") {
    const auto one = value_of(in[0].toTensor()), other = value_of(in[1].toTensor());
    if (one == other) return true;
    if (in[0].toTensor().sizes() != in[1].toTensor().sizes()) return false;
    // at::is_scalar_tensor_true(condition), which ATen's own checks ask.
    const auto& to = in[1].toTensor();
    const auto made_by = [&](ValueId value, std::string_view op) {
      const auto producer = captured_.graph.at(value).producer;
      return producer && captured_.graph.at(*producer).op.starts_with(op);
    };
    const bool truth = to.scalar_type() == at::kBool && to.dim() == 0 &&
                       (touches_value(to) ? made_by(other, "aten::new_ones") : to.item<bool>());
    if (truth && !from_inputs_[one.index] && metas_[one.index].scalar_type() == at::kBool) {
      condition = one;
      expected = true;
    } else if (!from_inputs_[one.index] || !from_inputs_[other.index]) {
      // As torch's attention asks, of what it makes queries and keys: two activations differ.
      condition =
          emit_one("aten::all", {{"self", emit_one("aten::eq.Tensor", {{"self", one}, {"other", other}})}});
      expected = false;
      otherwise =
          "torch::equal() of two tensors that depend on parameters was recorded as false, and they are "
          "equal, ";
    }
  } else if (info.name == "aten::allclose" && phase_ == ir::Phase::Backward) {
    // Of linalg_eig, that the loss does not depend on the vectors' phases.
    std::vector<ir::Argument> arguments = {{"self", value_of(in[0].toTensor())},
                                           {"other", value_of(in[1].toTensor())}};
    arguments.insert(arguments.end(), {{"rtol", in[2].toDouble()}, {"atol", in[3].toDouble()}});
    condition = emit_one("aten::all", {{"self", emit_one("aten::isclose", std::move(arguments))}});
    expected = true;
  }
  if (!expected) return std::nullopt;
  expectations_.push_back({*condition, *expected, concat(otherwise, where())});
  return expected;
}

// BatchNorm without a momentum averages over all batches: running += (batch - running) / count. The count is
// read and given to the operator as a momentum of 1 / count; a number that no one else gives stands for it.
std::optional<ValueId> Recorder::running_average(std::vector<ir::Argument>& arguments) {
  const auto momentum = std::ranges::find(arguments, "momentum", &ir::Argument::name);
  if (counts_.empty() || momentum == arguments.end()) return std::nullopt;
  const auto* number = std::get_if<double>(&momentum->value);
  const auto found = number ? counts_.find(*number) : counts_.end();
  if (found == counts_.end()) return std::nullopt;
  momentum->value = 1.0;  // the statistics of this batch alone
  return found->second;
}

ValueId Recorder::averaged(ValueId before, ValueId now, ValueId count) {
  const auto change = emit_one("aten::sub.Tensor", {{"self", now}, {"other", before}});
  const auto part = emit_one("aten::div.Tensor", {{"self", change}, {"other", count}});
  return emit_one("aten::add.Tensor", {{"self", before}, {"other", part}});
}

void Recorder::require_expectations() {
  auto& results = captured_.graph.results;
  if (expectations_.empty() || results.empty()) return;
  const auto loss = std::ranges::find(results, ir::Role::Loss, &ir::Result::role);
  auto& result = loss == results.end() ? results.front() : *loss;
  for (auto& [condition, expected, otherwise] : expectations_) {
    const auto value = result.value;
    result.value = add_node("shoal::expect",
                            {{"self", value},
                             {"condition", condition},
                             {"expected", expected},
                             {"otherwise", std::move(otherwise)}},
                            {metas_[value.index]}, devices_[value.index], false)
                       .at(0)
                       .value();
  }
}

at::Tensor Recorder::evaluate(ValueId value, const std::string& op) {
  if (!from_inputs_[value.index])
    untraceable(
        "reads a value that depends on a parameter, a buffer or a random operator (" + op +
            "), so the step is not one fixed graph",
        "keep it a tensor: where, masks and clamp instead of if, item() and boolean indexing; what is to be "
        "printed or counted is returned beside the loss (outputs). What depends on the batch alone may be "
        "read");
  aten::Interpreter interpreter(captured_.graph);
  std::size_t input = 0, held = 0;
  for (const auto& source : captured_.graph.sources) {
    const auto role = captured_.graph.at(source.value).role;
    if (role == ir::Role::Input) interpreter.bind(source.value, request_.inputs[input++].tensor);
    if (role == ir::Role::Constant) interpreter.bind(source.value, captured_.constants[held++]);
  }
  return interpreter.value(value);
}

void Recorder::record_read(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  const auto in = popped(stack, schema.arguments().size());
  if (const auto answer = check(info, in)) {
    stack.emplace_back(*answer);
    return;
  }
  if (info.name == "aten::_local_scalar_dense" && request_.reader &&
      request_.reader() == Reader::RunningAverage) {
    const auto number = 1'000'003 + static_cast<std::int64_t>(counts_.size());
    counts_.emplace(1.0 / static_cast<double>(number), value_of(in[0].toTensor()));
    stack.emplace_back(number);
    return;
  }
  const auto device = device_of(schema, in);
  const ir::Node call{.op = info.name, .arguments = arguments_of(schema, in)};
  auto results = aten::call(call, [&](ValueId value) { return evaluate(value, info.name); });
  Guards::Guard guard{.call = call, .shapes_only = info.dynamic_shape, .where = where_in_module()};
  std::vector<at::Tensor> metas;
  for (const auto& result : results) {
    guard.expected.push_back(info.dynamic_shape ? c10::IValue(result.toTensor().sizes()) : result);
    if (info.dynamic_shape) metas.push_back(meta_of(result.toTensor()));
  }
  for (const auto& result : results) for_each_tensor(result, [&](const at::Tensor& t) { made(t); });
  captured_.guards.list.push_back(std::move(guard));
  if (info.dynamic_shape)
    push_results(op, add_node(info.name, call.arguments, metas, device, false), stack);
  else
    for (auto& result : results) stack.push_back(std::move(result));
}

}  // namespace shoal::capture
