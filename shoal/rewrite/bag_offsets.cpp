// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/bag_offsets.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <variant>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::ValueId;

// Ops whose result is their input's numbers, or some of them.
static constexpr std::array<std::string_view, 12> kPasses = {
    "aten::_to_copy",    "aten::alias",      "aten::clone",        "aten::copy",
    "aten::detach",      "aten::select.int", "aten::slice.Tensor", "aten::squeeze",
    "aten::squeeze.dim", "aten::unsqueeze",  "aten::_unsafe_view", "aten::view"};

static const ir::Source* source_of(const Graph& graph, ValueId value) {
  const auto source = std::ranges::find(graph.sources, value, &ir::Source::value);
  return source == graph.sources.end() ? nullptr : &*source;
}

// The item of the batch that it is, whatever form that was brought to.
static const ir::Source* input_of(const Graph& graph, ValueId value) {
  for (;;) {
    const auto& [type, role, producer] = graph.at(value);
    if (!producer) return role == ir::Role::Input ? source_of(graph, value) : nullptr;
    const Node& node = graph.at(*producer);
    const auto inputs = ir::inputs_of(node);
    if (std::ranges::find(kPasses, node.op) == kPasses.end() || inputs.size() != 1) return nullptr;
    value = inputs[0];
  }
}

static std::string said_of(const ir::Source* input, const Node& bag) {
  return concat(
      "trainer: ", input == nullptr ? "offsets" : concat("item ", input->name, " of the batch, offsets"),
      " of the EmbeddingBag in module \"", bag.module, "\"");
}

static constexpr std::string_view kRemedy =
    ", as of a batch of each rank's own, and they count the ids of all ranks. Remedy: samples_of() or "
    "part_of() of a "
    "batch that all ranks have, ids of [samples, length] with padding_idx, or the whole batch on every rank, "
    "named in "
    "replicated_inputs";

static ValueId expected(Writer& write, ValueId offsets, ValueId condition, bool wanted,
                        std::string otherwise) {
  return write.value("shoal::expect",
                     {{"self", offsets},
                      {"condition", condition},
                      {"expected", wanted},
                      {"otherwise", std::move(otherwise)}},
                     write.type(offsets));
}

Graph check_bag_offsets(const Graph& graph, std::int64_t ranks, const IsCut& is_cut) {
  return ir::rebuild(
      graph, [&](Graph& made, const Node& node, const ir::Mapped& in) -> std::optional<ir::Outputs> {
        if (node.op != "aten::_embedding_bag" && node.op != "aten::_embedding_bag_forward_only")
          return std::nullopt;
        const ValueId given = std::get<ValueId>(*ir::find(node, "offsets"));
        const auto& [type, role, producer] = graph.at(given);
        const std::int64_t count = type.shape.at(0);
        if (role == ir::Role::Constant || count < 2) return std::nullopt;
        const ir::Source* const input = input_of(graph, given);
        Writer write(made, node);
        const auto any = [&](ValueId of, const char* op, std::int64_t size) {
          const ValueId is = write.value(op, {{"self", of}, {"other", std::int64_t{0}}},
                                         ir::contiguous(DType::Bool, {size}));
          return write.value("aten::any", {{"self", is}}, ir::contiguous(DType::Bool, {}));
        };
        ValueId offsets = in(given);
        const ValueId steps = write.value("aten::diff",
                                          {{"self", offsets},
                                           {"n", std::int64_t{1}},
                                           {"dim", std::int64_t{0}},
                                           {"prepend", {}},
                                           {"append", {}}},
                                          ir::contiguous(type.dtype, {count - 1}));
        const ValueId goes_down = any(steps, "aten::lt.Scalar", count - 1);
        offsets =
            expected(write, offsets, goes_down, false, concat(said_of(input, node), ", go down", kRemedy));
        if (input != nullptr && count == ranks &&
            is_cut(input->name, graph.at(input->value).type.shape.size()))
          offsets = expected(write, offsets, any(offsets, "aten::ne.Scalar", count), true,
                             concat(said_of(input, node), ", are 0 on each rank", kRemedy));
        Node checked = ir::with_inputs(node, [&](ValueId value) { return in(value); });
        for (auto& argument : checked.arguments)
          if (argument.name == "offsets") argument.value = offsets;
        std::vector<std::optional<ir::TensorType>> types;
        for (const auto& output : node.outputs)
          types.push_back(output ? std::optional(graph.at(*output).type) : std::nullopt);
        return made.at(write.node(checked.op, checked.arguments, types)).outputs;
      });
}

}  // namespace shoal::rewrite
