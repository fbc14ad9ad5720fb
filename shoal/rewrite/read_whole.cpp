// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/read_whole.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::Outputs;
using ir::Role;
using ir::TensorType;
using ir::ValueId;

static constexpr std::int64_t kMostRows = std::int64_t{1} << 20;

static bool looks_up(const Node& node, ValueId table) {
  if (node.op != "aten::embedding" && !node.op.starts_with("aten::_embedding_bag")) return false;
  return std::get<ValueId>(*ir::find(node, "weight")) == table &&
         std::ranges::count(ir::inputs_of(node), table) == 1;
}

// Rows, as many as the first dim, or one.
static TensorType rows_of(const TensorType& type) {
  const std::int64_t rows = type.shape.size() < 2 ? 1 : type.shape.front();
  std::int64_t width = 1;
  for (std::size_t dim = type.shape.size() < 2 ? 0 : 1; dim < type.shape.size(); ++dim)
    width *= type.shape[dim];
  return ir::contiguous(type.dtype, {rows, width});
}

namespace {

class Reading {
 public:
  Reading(Graph graph, const std::vector<std::string>& parameters) : old_(std::move(graph)) {
    for (const auto& source : old_.sources) {
      if (old_.at(source.value).role != Role::Parameter ||
          std::ranges::find(parameters, source.name) == parameters.end())
        continue;
      const Node* reader = reader_of(source.value);
      if (reader == nullptr) continue;
      TensorType& type = old_.values[source.value.index].type;
      const TensorType rows = rows_of(type);
      SHOAL_CHECK(
          rows.shape.front() <= kMostRows, InvalidInput, "tables: parameter ", source.name, " has ",
          rows.shape.front(), " rows, and ", reader->op, " in module \"", reader->module,
          "\" reads them all. Remedy: leave it out of the tables, or look its rows up by embedding alone");
      SHOAL_CHECK(
          type == ir::contiguous(type.dtype, type.shape), InvalidInput, "tables: parameter ", source.name,
          " is not contiguous, and rows are. Remedy: a contiguous parameter, or leave it out of the tables");
      whole_.emplace(source.value, Whole{.type = type});
      type = rows;
    }
  }

  Graph run() {
    if (whole_.empty()) return std::move(old_);
    Graph made = ir::rebuild(old_, [&](Graph& graph, const Node& node, const ir::Mapped& in) {
      return reads_whole(node) ? std::optional(copy(graph, node, in)) : std::nullopt;
    });
    for (ir::Result& result : made.results)
      if (result.role == Role::Gradient) to_rows(made, result);
    return made;
  }

 private:
  struct Whole {
    TensorType type;  // as the model has it
    ValueId ids = {}, values = {};
    bool is_read = false;
  };

  const Node* reader_of(ValueId table) const {
    const auto found = std::ranges::find_if(old_.nodes, [&](const Node& node) {
      return std::ranges::count(ir::inputs_of(node), table) > 0 && !looks_up(node, table);
    });
    return found == old_.nodes.end() ? nullptr : &*found;
  }
  bool reads_whole(const Node& node) const {
    return std::ranges::any_of(ir::inputs_of(node), [&](ValueId input) { return whole_.contains(input); });
  }

  ValueId read(Graph& made, const Node& reader, ValueId table, ValueId in_made) {
    Whole& whole = whole_.at(table);
    if (std::exchange(whole.is_read, true)) return whole.values;
    Writer write(made, reader);
    whole.ids = write.arange(old_.at(table).type.shape.front());
    whole.values = write.embedding(in_made, whole.ids);
    if (whole.type.shape.size() != 2) whole.values = write.view(whole.values, whole.type.shape);
    return whole.values;
  }

  Outputs copy(Graph& made, const Node& node, ir::Mapped in) {
    for (const ValueId input : ir::inputs_of(node))
      if (whole_.contains(input)) in.set(input, read(made, node, input, in(input)));
    return ir::copy(old_, node, in, made);
  }

  void to_rows(Graph& made, ir::Result& gradient) {
    for (const auto& [table, whole] : whole_) {
      const auto source = std::ranges::find(old_.sources, table, &ir::Source::value);
      if (source->name != gradient.name || !whole.is_read) continue;
      const auto& producer = made.at(gradient.value).producer;
      SHOAL_CHECK(producer, InvalidInput, "tables: the gradient of ", gradient.name,
                  " is no node's output. Remedy: leave it out of the tables");
      const Node of = made.at(*producer);
      Writer write(made, of);
      gradient.value = write.embedding_backward(gradient.value, whole.ids, old_.at(table).type);
    }
  }

  Graph old_;
  std::map<ValueId, Whole> whole_;
};

}  // namespace

Graph read_whole(Graph graph, const std::vector<std::string>& parameters) {
  return Reading(std::move(graph), parameters).run();
}

}  // namespace shoal::rewrite
