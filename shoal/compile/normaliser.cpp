// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/normaliser.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::compile {

using ir::NodeId;
using ir::Role;
using ir::ValueId;

// ATen's numbers of at::Reduction.
static constexpr std::int64_t kMean = 1;
static constexpr std::int64_t kSum = 2;

// Losses with an argument `reduction` whose mean is over all elements of `self`.
static constexpr std::array<std::string_view, 6> kElementwiseLosses = {
    "aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits",
    "aten::huber_loss",           "aten::mse_loss",
    "aten::smooth_l1_loss",       "aten::soft_margin_loss"};
static_assert(std::ranges::is_sorted(kElementwiseLosses));
// What gives its first argument's value, scaled by a constant at most.
static constexpr std::array<std::string_view, 9> kPassed = {
    "aten::_to_copy", "aten::alias",   "aten::clone",   "aten::div.Scalar", "aten::mul.Scalar",
    "aten::neg",      "aten::reshape", "aten::squeeze", "aten::view"};
static_assert(std::ranges::is_sorted(kPassed));

static std::optional<ValueId> value_in(const ir::Node& node, std::string_view argument) {
  const auto* found = ir::find(node, argument);
  const auto* value = found == nullptr ? nullptr : std::get_if<ValueId>(found);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

static std::int64_t integer_in(const ir::Node& node, std::string_view argument) {
  const auto* found = ir::find(node, argument);
  const auto* value = found == nullptr ? nullptr : std::get_if<std::int64_t>(found);
  return value == nullptr ? -1 : *value;
}

namespace {

// For each value, whether what it is made of is the batch, or nothing but constants.
struct Origins {
  std::vector<bool> of_inputs;
  std::vector<bool> of_constants;

  explicit Origins(const ir::Graph& graph)
      : of_inputs(graph.values.size()), of_constants(graph.values.size()) {
    for (const auto& source : graph.sources) {
      const Role role = graph.at(source.value).role;
      of_constants[source.value.index] = role == Role::Constant;
      of_inputs[source.value.index] = role == Role::Constant || role == Role::Input;
    }
    for (const auto& node : graph.nodes) {
      const auto inputs = ir::inputs_of(node);
      const auto all = [&](const std::vector<bool>& flags) {
        return std::ranges::all_of(inputs, [&](ValueId value) { return flags[value.index]; });
      };
      for (const auto& output : node.outputs)
        if (output) {
          of_constants[output->index] = all(of_constants);
          of_inputs[output->index] = all(of_inputs);
        }
    }
  }
};

}  // namespace

static Normaliser of_nll(const ir::Node& node, const Origins& origins) {
  using Kind = Normaliser::Kind;
  const auto reduction = integer_in(node, "reduction");
  if (reduction == kSum) return {.kind = Kind::Sum, .op = node.op};
  const auto target = value_in(node, "target");
  const auto weight = value_in(node, "weight");
  const bool is_of_inputs =
      target && origins.of_inputs[target->index] && (!weight || origins.of_inputs[weight->index]);
  if (reduction != kMean || !is_of_inputs || node.outputs.size() < 2 || !node.outputs[1]) return {};
  return {.kind = Kind::Value, .count = node.outputs[1], .op = node.op};
}

Normaliser normaliser_of(const ir::Graph& graph) {
  using Kind = Normaliser::Kind;
  const Origins origins(graph);
  const auto loss = std::ranges::find(graph.results, Role::Loss, &ir::Result::role);
  if (loss == graph.results.end()) return {};
  for (ValueId at = loss->value;;) {
    const auto producer = graph.at(at).producer;
    if (!producer) return {};
    const ir::Node& node = graph.at(*producer);
    const auto self = value_in(node, "self");
    if (node.op == "aten::nll_loss_forward" || node.op == "aten::nll_loss2d_forward")
      return node.outputs[0] == at ? of_nll(node, origins) : Normaliser{};
    if (!self) return {};
    const auto elements = static_cast<double>(ir::num_elements(graph.at(*self).type));
    if (node.op == "aten::sum") return {.kind = Kind::Sum, .op = node.op};
    if (node.op == "aten::mean") return {.kind = Kind::Elements, .elements = elements, .op = node.op};
    if (std::ranges::binary_search(kElementwiseLosses, std::string_view(node.op))) {
      const auto reduction = integer_in(node, "reduction");
      if (reduction == kMean) return {.kind = Kind::Elements, .elements = elements, .op = node.op};
      return reduction == kSum ? Normaliser{.kind = Kind::Sum, .op = node.op} : Normaliser{};
    }
    const auto other = value_in(node, "other");
    const bool is_product = node.op == "aten::mul.Tensor" && other;
    const bool is_quotient = node.op == "aten::div.Tensor" && other;
    if (std::ranges::binary_search(kPassed, std::string_view(node.op))) {
      at = *self;
    } else if ((is_product || is_quotient) && origins.of_constants[other->index]) {
      at = *self;
    } else if (is_product && origins.of_constants[self->index]) {
      at = *other;
    } else if (is_quotient && origins.of_inputs[other->index]) {
      // Right only for a sum above: something else divided by a count is no mean.
      const auto above = graph.at(*self).producer;
      const bool is_sum = above && graph.at(*above).op == "aten::sum";
      return is_sum ? Normaliser{.kind = Kind::Value, .count = other, .op = node.op} : Normaliser{};
    } else {
      return {};
    }
  }
}

std::string to_text(const Normaliser& normaliser) {
  using Kind = Normaliser::Kind;
  switch (normaliser.kind) {
    case Kind::Value: return concat("micro-batches weigh as many targets as count (", normaliser.op, ")");
    case Kind::Elements:
      return concat("micro-batches weigh as many elements as they have (", normaliser.op, ")");
    case Kind::Sum: return concat("the loss is a sum over micro-batches (", normaliser.op, ")");
    case Kind::Equal: break;
  }
  return "each micro-batch weighs the same: the loss is no sum divided by a count that depends on inputs "
         "alone";
}

}  // namespace shoal::compile
