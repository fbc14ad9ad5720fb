// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/tables.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ir/rebuild.h"
#include "shoal/ir/text.h"
#include "shoal/rewrite/bags.h"
#include "shoal/rewrite/read_whole.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::Role;
using ir::ValueId;

static constexpr std::string_view kRemedy =
    ". Remedy: leave it out of the tables, or look its rows up by embedding alone";

static const ValueId& value_in(const Node& node, std::string_view argument) {
  return std::get<ValueId>(*ir::find(node, argument));
}
static bool is_true(const Node& node, std::string_view argument) {
  const auto* found = ir::find(node, argument);
  const bool* is = found == nullptr ? nullptr : std::get_if<bool>(found);
  return is != nullptr && *is;
}
static std::int64_t padding_of(const Node& node) {
  const auto* found = ir::find(node, "padding_idx");
  const auto* padding = found == nullptr ? nullptr : std::get_if<std::int64_t>(found);
  return padding == nullptr || *padding < 0 ? -1 : *padding;
}

namespace {

// A lookup: what it reads of which table.
struct Lookup {
  ValueId table, ids;
  std::int64_t padding = -1;
  friend auto operator<=>(const Lookup&, const Lookup&) = default;
};

// What a table gets of its rows' gradients.
struct RowGradient {
  Lookup lookup;
  ValueId gradient;
};

class PlacingTables {
 public:
  PlacingTables(Graph graph, const std::vector<TableSpec>& specs) : old_(std::move(graph)) {
    readers_.resize(old_.values.size());
    for (std::size_t i = 0; i < old_.nodes.size(); ++i)
      for (const ValueId input : ir::inputs_of(old_.nodes[i]))
        readers_[input.index].push_back({static_cast<std::uint32_t>(i)});
    for (const auto& source : old_.sources) {
      const auto spec = std::ranges::find(specs, source.name, &TableSpec::parameters);
      if (spec != specs.end() && old_.at(source.value).role == Role::Parameter)
        tables_.emplace(source.value, *spec);
    }
  }

  Graph run(RowGradients then) {
    for (const auto& [table, spec] : tables_) {
      check_readers(table, spec.parameters);
      find_gradients(table, spec.parameters);
      ir::TensorType& type = old_.values[table.index].type;
      type = ir::contiguous(type.dtype, {0});
    }
    Graph made = ir::rebuild(old_, [&](Graph& graph, const Node& node, const ir::Mapped& in) {
      const auto id = NodeId{static_cast<std::uint32_t>(&node - old_.nodes.data())};
      if (dropped_.contains(id)) return std::optional(ir::Outputs(node.outputs.size()));
      return node.op == "aten::embedding" && tables_.contains(value_in(node, "weight"))
                 ? std::optional(look_up(graph, node, in))
                 : remember(graph, node, in);
    });
    if (then != RowGradients::None && !gradients_.empty()) append(made, then);
    return made;
  }

 private:
  static Lookup lookup_of(const Node& node, ValueId table) {
    return {.table = table, .ids = value_in(node, "indices"), .padding = padding_of(node)};
  }

  void check_readers(ValueId table, const std::string& name) const {
    for (const NodeId reader : readers_[table.index]) {
      const Node& node = old_.at(reader);
      SHOAL_CHECK(
          !node.op.starts_with("aten::_embedding_bag"), InvalidInput, "tables: parameter ", name,
          " is read by an EmbeddingBag in module \"", node.module,
          "\" that scales gradients by how often an id is in the batch (scale_grad_by_freq), which its "
          "servers do not",
          kRemedy);
      SHOAL_CHECK(node.op == "aten::embedding", Internal, "tables: ", name, " is read by ", node.op,
                  " yet (read_whole.h)");
      SHOAL_CHECK(!is_true(node, "scale_grad_by_freq"), InvalidInput, "tables: the embedding of ", name,
                  " in module \"", node.module,
                  "\" scales gradients by how often an id is in the batch (scale_grad_by_freq), which its "
                  "servers do not",
                  kRemedy);
    }
    for (const auto& result : old_.results) {
      SHOAL_CHECK(
          result.value != table, InvalidInput, "tables: parameter ", name,
          " is given back by the model as it is, and its rows are in a table. Remedy: Trainer::rows()");
      SHOAL_CHECK(result.role != Role::Parameter || result.name != name, InvalidInput, "tables: parameter ",
                  name, " is written to by the model itself (max_norm of an embedding does so)", kRemedy);
    }
  }

  // The result goes, with all that it is made of down to the gradients of rows.
  void find_gradients(ValueId table, const std::string& name) {
    const auto result = std::ranges::find_if(old_.results, [&](const ir::Result& each) {
      return each.role == Role::Gradient && each.name == name;
    });
    if (result == old_.results.end()) return;
    const ValueId gradient = result->value;
    old_.results.erase(result);
    collect(gradient, table, name);
  }

  void collect(ValueId value, ValueId table, const std::string& name) {
    const auto& producer = old_.at(value).producer;
    SHOAL_CHECK(producer, InvalidInput, "tables: the gradient of ", name, " is no node's output", kRemedy);
    const Node& node = old_.at(*producer);
    dropped_.insert(*producer);
    for (const NodeId reader : readers_[value.index])
      SHOAL_CHECK(dropped_.contains(reader), InvalidInput, "tables: the gradient of ", name, " is read by ",
                  old_.at(reader).op, " in module \"", old_.at(reader).module,
                  "\", and goes to its servers row by row", kRemedy);
    if (node.op == "aten::embedding_dense_backward") {
      gradients_.push_back({lookup_of(node, table), value_in(node, "grad_output")});
      return;
    }
    const auto* factor = ir::find(node, "alpha");
    const bool adds =
        node.op == "aten::add.Tensor" && factor != nullptr && *factor == ir::Attribute(std::int64_t{1});
    SHOAL_CHECK(adds || node.op == "aten::detach" || node.op == "aten::clone", InvalidInput,
                "tables: the gradient of ", name, " is made by ", node.op, " in module \"", node.module,
                "\" (a hook?), and what goes to its servers is the sum of its rows' gradients", kRemedy);
    for (const ValueId input : ir::inputs_of(node)) collect(input, table, name);
  }

  struct Pulled {
    ValueId rows, places;
  };

  ir::Outputs look_up(Graph& made, const Node& node, const ir::Mapped& in) {
    const Lookup lookup = lookup_of(node, value_in(node, "weight"));
    if (const auto known = pulled_.find(lookup); known != pulled_.end()) return {known->second.rows};
    Node pull{
        .op = "shoal::pull_rows",
        .arguments = {{"table", in(lookup.table)}, {"ids", in(lookup.ids)}, {"padding_idx", lookup.padding}},
        .outputs = {},
        .phase = node.phase,
        .module = node.module,
        .stage = node.stage};
    const auto& rows = old_.at(*node.outputs[0]).type;
    const auto id =
        made.add_node(std::move(pull), {rows, ir::contiguous(DType::Int32, old_.at(lookup.ids).type.shape)});
    const Pulled pulled = {*made.at(id).outputs[0], *made.at(id).outputs[1]};
    pulled_.emplace(lookup, pulled);
    return {pulled.rows};
  }

  // Where values went that a push reads.
  std::optional<ir::Outputs> remember(Graph& made, const Node& node, const ir::Mapped& in) {
    auto outputs = ir::copy(old_, node, in, made);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (node.outputs[i] && outputs[i]) stands_for_[*node.outputs[i]] = *outputs[i];
    return outputs;
  }
  ValueId in_made(ValueId value) const {
    const auto found = stands_for_.find(value);
    return found == stands_for_.end() ? value : found->second;  // sources keep their ids
  }

  // The input that has the clicks of the samples that these ids are of: as many as the ids' first dim is long, or as
  // there are bags of them.
  std::optional<ValueId> clicks_of(const Lookup& lookup, Writer& write) const {
    const auto& [name, input] = tables_.at(lookup.table);
    if (input.empty()) return std::nullopt;
    const Node* const bags = bags_of(lookup, name);
    std::string there;
    for (const auto& source : old_.sources) {
      const ir::Value& value = old_.at(source.value);
      if (value.role != Role::Input) continue;
      there += concat(there.empty() ? "" : ", ", source.name);
      if (source.name != input) continue;
      const auto &shape = value.type.shape, &ids = old_.at(lookup.ids).type.shape;
      const std::int64_t samples = bags != nullptr ? num_bags(*bags) : ids.empty() ? -1 : ids[0];
      const bool is_of_samples =
          !shape.empty() && shape[0] == samples &&
          std::ranges::all_of(shape.begin() + 1, shape.end(), [](std::int64_t size) { return size == 1; });
      SHOAL_CHECK(is_of_samples, InvalidInput, "tables: clicks of ", name, " are input ", input, " of ",
                  ir::to_text(value.type), ", and its ids are ",
                  bags != nullptr ? concat("in ", samples, " bags") : ir::to_text(old_.at(lookup.ids).type),
                  "; wanted [samples] of each, and ids of [samples], [samples, …] or a bag for each sample");
      return bags != nullptr ? of_ids(source.value, *bags, ids[0], write) : source.value;
    }
    fail(ErrorKind::InvalidInput, "tables: clicks of ", name, " are input \"", input,
         "\", which the step does not read; it reads ", there.empty() ? "none" : there);
  }

  // What the ids' rows are read by, where that is bags of any length: it says which sample an id is of.
  const Node* bags_of(const Lookup& lookup, const std::string& name) const {
    const Node* found = nullptr;
    for (const NodeId at : readers_[lookup.table.index]) {
      const Node& node = old_.at(at);
      if (node.op != "aten::embedding" || lookup_of(node, lookup.table) != lookup) continue;
      for (const NodeId reader : readers_[node.outputs[0]->index])
        if (const Node& bags = old_.at(reader); bags.op.starts_with("aten::_embedding_bag")) {
          SHOAL_CHECK(found == nullptr || value_in(*found, "offsets") == value_in(bags, "offsets"),
                      InvalidInput, "tables: clicks of ", name, " in modules \"", found->module, "\" and \"",
                      bags.module,
                      "\": the same ids are in bags of two kinds, and an id is clicked as the sample of one. "
                      "Remedy: ids of their own, or no clicks");
          found = &bags;
        }
    }
    return found;
  }
  std::int64_t num_bags(const Node& bags) const {
    return old_.at(value_in(bags, "offsets")).type.shape.at(0) -
           (is_true(bags, "include_last_offset") ? 1 : 0);
  }
  // Of so many ids: the numbers of their bags. One of padding that is after the last counts for nothing.
  ValueId of_ids(ValueId of_bags, const Node& bags, std::int64_t count, Writer& write) const {
    const ValueId offsets = in_made(value_in(bags, "offsets"));
    const ir::TensorType type = ir::contiguous(DType::Int64, {count});
    const ValueId after = write.value("aten::searchsorted.Tensor",
                                      {{"sorted_sequence", offsets},
                                       {"self", write.arange(count, write.type(offsets).dtype)},
                                       {"out_int32", false},
                                       {"right", true},
                                       {"side", {}},
                                       {"sorter", {}}},
                                      type);
    const ValueId bag = write.value(
        "aten::sub.Scalar", {{"self", after}, {"other", std::int64_t{1}}, {"alpha", std::int64_t{1}}}, type);
    const ValueId within = write.value("aten::clamp_max", {{"self", bag}, {"max", num_bags(bags) - 1}}, type);
    auto [dtype, shape, strides] = write.type(of_bags);
    shape[0] = count;
    return write.value("aten::index_select", {{"self", of_bags}, {"dim", std::int64_t{0}}, {"index", within}},
                       ir::contiguous(dtype, shape));
  }

  void append(Graph& made, RowGradients then) {
    Node node{.op = then == RowGradients::Push ? "shoal::push_rows" : "shoal::add_up_rows",
              .phase = ir::Phase::Update};
    ir::ValueList tables, ids, places, gradients, clicks;
    Writer write(made, node);
    const ValueId once = write.full({}, 1.0, DType::Float64);
    std::vector<std::int64_t> of;
    for (const auto& [lookup, gradient] : gradients_) {
      const auto pulled = pulled_.find(lookup);
      SHOAL_CHECK(pulled != pulled_.end(), InvalidInput, "tables: ", tables_.at(lookup.table).parameters,
                  " has a gradient of a lookup that the graph does not make", kRemedy);
      auto table = std::ranges::find(tables, std::optional(in_made(lookup.table)));
      if (table == tables.end()) table = tables.insert(tables.end(), in_made(lookup.table));
      of.push_back(table - tables.begin());
      ids.emplace_back(in_made(lookup.ids));
      places.emplace_back(pulled->second.places);
      gradients.emplace_back(in_made(gradient));
      clicks.push_back(clicks_of(lookup, write));
    }
    ir::ValueList counts(ids.size(), once);
    node.arguments = {{"tables", std::move(tables)},
                      {"of", std::move(of)},
                      {"ids", std::move(ids)},
                      {"places", std::move(places)},
                      {"gradients", std::move(gradients)},
                      {"counts", std::move(counts)},
                      {"clicks", std::move(clicks)}};
    const bool pushes = then == RowGradients::Push;
    const auto scalar = [&](std::string_view name, DType dtype) {
      node.arguments.push_back({std::string(name.substr(name.find('.') + 1)),
                                made.add_source(Role::Scalar, std::string(name), ir::contiguous(dtype, {}))});
    };
    scalar(pushes ? kRowsStep : kRowsKeep, pushes ? DType::Int64 : DType::Float64);
    scalar(pushes ? kRowsRate : kRowsWeight, DType::Float64);
    made.add_node(std::move(node), {});
  }

  Graph old_;
  std::vector<std::vector<NodeId>> readers_;  // by value
  std::map<ValueId, TableSpec> tables_;
  std::vector<RowGradient> gradients_;
  std::set<NodeId> dropped_;
  std::map<Lookup, Pulled> pulled_;
  std::map<ValueId, ValueId> stands_for_;
};

}  // namespace

Graph tables(Graph graph, const std::vector<TableSpec>& parameters, RowGradients then) {
  std::vector<std::string> names;
  for (const TableSpec& spec : parameters) names.push_back(spec.parameters);
  return PlacingTables(read_whole(bags_as_lookups(std::move(graph), names), names), parameters).run(then);
}

void append_push_of_sums(Graph& graph) {
  Node node{.op = "shoal::push_sums", .phase = ir::Phase::Update};
  for (const auto& [name, dtype] :
       {std::pair{kRowsDivisor, DType::Float64}, {kRowsStep, DType::Int64}, {kRowsRate, DType::Float64}})
    node.arguments.push_back({std::string(name.substr(name.find('.') + 1)),
                              graph.add_source(Role::Scalar, std::string(name), ir::contiguous(dtype, {}))});
  graph.add_node(std::move(node), {});
}

}  // namespace shoal::rewrite
