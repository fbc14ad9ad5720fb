// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/decompose.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Argument;
using ir::Attribute;
using ir::Graph;
using ir::Node;
using ir::Outputs;
using ir::TensorType;
using ir::ValueId;

namespace {

// A node to be written anew: `node` reads values of the new graph, `types` are those of its outputs.
struct Job {
  Writer& write;
  const Node& node;
  std::vector<std::optional<TensorType>> types;

  const Attribute& argument(std::string_view name) const {
    const Attribute* found = ir::find(node, name);
    SHOAL_CHECK(found != nullptr, Internal, "decompose: ", node.op, " has no argument '", name, "'");
    return *found;
  }
  ValueId value(std::string_view name) const { return std::get<ValueId>(argument(name)); }
  const TensorType& type(std::string_view name) const { return write.type(value(name)); }
};

}  // namespace

// --- Averages: the sum, divided by the count.

// Sums of many small floats are made in float: a sum leaves the range of half precision where the mean does
// not.
static DType sum_type(DType dtype) {
  return dtype == DType::Float16 || dtype == DType::BFloat16 ? DType::Float32 : dtype;
}

static Outputs mean(const Job& job) {
  const TensorType& made = job.types[0].value();
  const ValueId self = job.value("self");
  const std::int64_t count = num_elements(job.write.type(self));
  const std::int64_t left = num_elements(made);
  std::vector<std::int64_t> dims;
  bool keepdim = false;
  if (const Attribute* given = ir::find(job.node, "dim")) {
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(given)) dims = *list;
    keepdim = std::get<bool>(job.argument("keepdim"));
  }
  const ValueId sum = job.write.sum(job.write.converted(self, sum_type(made.dtype)), dims, keepdim);
  return {job.write.converted(job.write.over(sum, static_cast<double>(count) / static_cast<double>(left)),
                              made.dtype)};
}

// --- The table.

static bool has_elements(const Graph& graph, const Node& node) {
  return std::ranges::all_of(
      node.outputs, [&](const auto& output) { return !output || num_elements(graph.at(*output).type) > 0; });
}

namespace {
struct Row {
  std::string_view op;
  bool (*applies)(const Graph& graph, const Node& node);
  Outputs (*written)(const Job& job);
};
}  // namespace

static constexpr Row kRows[] = {
    {"aten::mean", has_elements, mean},
    {"aten::mean.dim", has_elements, mean},
};
static_assert(std::ranges::is_sorted(kRows, {}, &Row::op), "kRows: keep it in alphabetical order");

static const Row* row_of(const Graph& graph, const Node& node) {
  const auto* row = std::ranges::lower_bound(kRows, std::string_view(node.op), {}, &Row::op);
  return row != std::end(kRows) && row->op == node.op && row->applies(graph, node) ? row : nullptr;
}

bool can_decompose(const Graph& graph, const Node& node) { return row_of(graph, node) != nullptr; }

Graph decompose(Graph graph, const std::set<ir::NodeId>& nodes) {
  const auto written = [&](Graph& made, const Node& node, const ir::Mapped& in) -> std::optional<Outputs> {
    const ir::NodeId id{static_cast<std::uint32_t>(&node - graph.nodes.data())};
    if (!nodes.contains(id)) return std::nullopt;
    const Row* row = row_of(graph, node);
    SHOAL_CHECK(row != nullptr, Internal, "decompose: no simpler ops for ", node.op);
    Writer write(made, node);
    const Node mapped = ir::with_inputs(node, [&](ValueId value) { return in(value); });
    Job job = {write, mapped, {}};
    for (const auto& output : node.outputs)
      job.types.push_back(output ? std::optional(graph.at(*output).type) : std::nullopt);
    Outputs outputs = row->written(job);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (node.outputs[i]) {
        const TensorType& wanted = job.types[i].value();
        const TensorType& got = made.at(outputs.at(i).value()).type;
        SHOAL_CHECK(got.dtype == wanted.dtype && got.shape == wanted.shape, Internal, "decompose: output ", i,
                    " of ", node.op, " is of another dtype or shape than the node's");
        made.values[outputs[i]->index].role = graph.at(*node.outputs[i]).role;
      }
    return outputs;
  };
  return ir::rebuild(graph, written);
}

}  // namespace shoal::rewrite
