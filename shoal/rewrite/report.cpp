// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/report.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ir/flops.h"
#include "shoal/ir/own_ops.h"
#include "shoal/ir/views.h"
#include "shoal/sharding/collective.h"

namespace shoal::rewrite {

using ir::Phase;
using ir::Role;
using ir::ValueId;
using sharding::Layout;
using sharding::Mesh;
using sharding::Replicate;
using sharding::Shape;
using sharding::Shard;

static bool is_cut(const Layout& layout, std::size_t axis) {
  return std::holds_alternative<Shard>(layout.placements[axis]);
}
static bool is_whole(const Layout& layout, std::size_t axis) {
  return std::holds_alternative<Replicate>(layout.placements[axis]);
}
// Whether the axis cuts any of the batch.
static bool cuts_the_batch(const Placed& placed, std::size_t axis) {
  for (std::size_t i = 0; i < placed.kept.size(); ++i)
    if (placed.graph.at(placed.graph.sources[i].value).role == Role::Input &&
        std::holds_alternative<sharding::Shard>(placed.kept[i].placements[axis]))
      return true;
  return false;
}

static bool runs_split(const PlacedNode& node, std::size_t axis) {
  const auto cut = [&](const Layout& layout) { return is_cut(layout, axis); };
  return std::ranges::any_of(node.in, cut) || std::ranges::any_of(node.out, cut);
}

// How much of a node's work each rank of the axis does.
static std::vector<double> work_by_rank(const Placed& placed, std::size_t node, std::size_t axis) {
  const PlacedNode& of = placed.nodes[node];
  const Mesh mesh{{placed.mesh.axes[axis]}};
  std::vector<double> work(static_cast<std::size_t>(mesh.size()), 1);
  const auto take = [&](const Layout& layout, ValueId value) {
    if (!is_cut(layout, axis)) return false;
    const Shape& shape = placed.graph.at(value).type.shape;
    const Layout alone{{layout.placements[axis]}};
    const auto dim = static_cast<std::size_t>(std::get<Shard>(alone.placements[0]).dim);
    if (!misfit(mesh, alone, shape).empty() || shape[dim] == 0) return false;
    for (int rank = 0; rank < mesh.size(); ++rank)
      work[static_cast<std::size_t>(rank)] =
          static_cast<double>(local_shape(mesh, alone, shape, rank)[dim]) / static_cast<double>(shape[dim]);
    return true;
  };
  const ir::Node& from = placed.graph.nodes[node];
  const auto inputs = ir::inputs_of(from);
  for (std::size_t i = 0; i < from.outputs.size(); ++i)
    if (from.outputs[i] && take(of.out[i], *from.outputs[i])) return work;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (take(of.in[i], inputs[i])) return work;
  return work;
}

static std::vector<AxisShare> shares_of(const Placed& placed, double all_flops,
                                        std::string_view pipeline_axis) {
  std::vector<AxisShare> shares;
  for (std::size_t axis = 0; axis < placed.mesh.axes.size(); ++axis) {
    const auto& [name, ranks] = placed.mesh.axes[axis];
    if (ranks == 1 || name == pipeline_axis) continue;
    double flops = 0, bytes = 0, all_bytes = 0;
    std::vector<double> work(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < placed.nodes.size(); ++i) {
      const double each = flops_of(placed.graph, placed.graph.nodes[i]);
      if (each == 0) continue;
      if (runs_split(placed.nodes[i], axis)) flops += each;
      const auto done = work_by_rank(placed, i, axis);
      for (std::size_t rank = 0; rank < work.size(); ++rank) work[rank] += each * done[rank];
    }
    const double mean = std::accumulate(work.begin(), work.end(), 0.0) / ranks;
    for (std::size_t i = 0; i < placed.graph.sources.size(); ++i) {
      const auto& value = placed.graph.at(placed.graph.sources[i].value);
      if (value.role != Role::Parameter) continue;
      const auto size = static_cast<double>(ir::bytes_of(value.type));
      all_bytes += size;
      if (is_cut(placed.kept[i], axis)) bytes += size;
    }
    shares.push_back({.axis = name,
                      .ranks = ranks,
                      .flops = all_flops == 0 ? 1 : flops / all_flops,
                      .parameter_bytes = all_bytes == 0 ? 1 : bytes / all_bytes,
                      .busiest = mean == 0 ? 1 : *std::ranges::max_element(work) / mean});
  }
  return shares;
}

// Values that come of what is cut among the data's ranks.
static std::vector<bool> of_the_batch(const Placed& placed) {
  const ir::Graph& graph = placed.graph;
  std::vector<bool> depends(graph.values.size());
  for (std::size_t i = 0; i < graph.sources.size(); ++i) {
    if (graph.at(graph.sources[i].value).role != Role::Input) continue;
    for (std::size_t axis = 0; axis < placed.mesh.axes.size(); ++axis)
      if (is_cut(placed.kept[i], axis)) depends[graph.sources[i].value.index] = true;
  }
  for (const ir::Node& node : graph.nodes) {
    const auto inputs = ir::inputs_of(node);
    if (std::ranges::none_of(inputs, [&](ValueId input) { return depends[input.index]; })) continue;
    for (const auto& output : node.outputs)
      if (output) depends[output->index] = true;
  }
  return depends;
}

static std::vector<WholeOp> whole_ops(const Placed& placed, std::string_view pipeline_axis) {
  const ir::Graph& graph = placed.graph;
  const auto depends = of_the_batch(placed);
  std::vector<WholeOp> found;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    if (node.phase == Phase::Update || node.op == "shoal::clip") continue;
    const auto inputs = ir::inputs_of(node);
    const bool is_of_the_batch =
        std::ranges::any_of(inputs, [&](ValueId input) { return depends[input.index]; });
    const double flops = flops_of(graph, node);
    std::int64_t elements = 0, bytes = 0;
    for (const auto& output : node.outputs) {
      if (!output) continue;
      elements = std::max(elements, ir::num_elements(graph.at(*output).type));
      bytes += ir::bytes_of(graph.at(*output).type);
    }
    for (const ValueId input : inputs) elements = std::max(elements, ir::num_elements(graph.at(input).type));
    if (elements <= 1) continue;  // a loss, a count: there is nothing to cut
    const auto matters = [&](std::size_t axis) {
      return cuts_the_batch(placed, axis) ? is_of_the_batch : flops > 0;
    };
    std::string axes;
    for (std::size_t axis = 0; axis < placed.mesh.axes.size(); ++axis) {
      const auto& [name, ranks] = placed.mesh.axes[axis];
      const auto whole = [&](const Layout& layout) { return is_whole(layout, axis); };
      // On summands each rank does all of the work, which is cheap but for these ops.
      const bool is_done_by_all = flops > 0 ? !runs_split(placed.nodes[i], axis)
                                            : std::ranges::all_of(placed.nodes[i].in, whole) &&
                                                  std::ranges::all_of(placed.nodes[i].out, whole);
      if (ranks > 1 && name != pipeline_axis && is_done_by_all && matters(axis))
        axes += concat(axes.empty() ? "" : ", ", name);
    }
    if (axes.empty()) continue;
    const std::string module = folded(node.module);
    auto known = std::ranges::find_if(
        found, [&](const WholeOp& op) { return op.op == node.op && op.module == module && op.axes == axes; });
    if (known == found.end()) {
      found.push_back({.module = module, .op = node.op, .axes = axes});
      known = std::prev(found.end());
    }
    ++known->count;
    known->flops += flops;
    known->bytes += bytes;
  }
  return found;
}

// What brings a value to where it is wanted, and leaves it what it is.
static bool moves(std::string_view op) {
  const ir::OwnOp* own = ir::find_own_op(op);
  return own != nullptr && (own->kind == ir::OwnOp::Kind::Message || own->kind == ir::OwnOp::Kind::Move);
}

// Parameters, and what is made of them alone on the way to their use: parts, wholes, views, casts.
static std::vector<bool> of_parameters(const ir::Graph& graph) {
  std::vector<bool> marked(graph.values.size());
  for (const auto& source : graph.sources)
    marked[source.value.index] = graph.at(source.value).role == Role::Parameter;
  for (const ir::Node& node : graph.nodes) {
    const bool passes = moves(node.op) || node.op == "aten::_to_copy" || ir::is_view(node.op);
    const auto inputs = ir::inputs_of(node);
    if (!passes || std::ranges::any_of(inputs, [&](ValueId input) { return !marked[input.index]; })) continue;
    for (const auto& output : node.outputs)
      if (output) marked[output->index] = true;
  }
  return marked;
}

static void add_line(std::vector<LayerLine>& lines, LayerLine line) {
  const auto known = std::ranges::find_if(lines, [&](const LayerLine& other) {
    return other.path == line.path && other.is_parameter == line.is_parameter && other.shape == line.shape &&
           other.kept == line.kept && other.used == line.used;
  });
  if (known == lines.end()) {
    lines.push_back(std::move(line));
    return;
  }
  known->paths.push_back(std::move(line.paths.front()));
}

static std::vector<LayerLine> layers_of(const Placed& placed) {
  const ir::Graph& graph = placed.graph;
  std::vector<LayerLine> lines;
  for (std::size_t i = 0; i < graph.sources.size(); ++i) {
    const auto& [value, name, fingerprint] = graph.sources[i];
    if (graph.at(value).role != Role::Parameter) continue;
    add_line(lines, {.path = folded(name),
                     .is_parameter = true,
                     .shape = graph.at(value).type.shape,
                     .kept = placed.kept[i],
                     .used = placed.values[value.index],
                     .paths = {name}});
  }
  const auto parameters = of_parameters(graph);
  std::map<std::string, std::size_t> last;  // by module, the node that makes what it hands on
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    if (node.phase == Phase::Forward && !node.outputs.empty() && node.outputs[0] &&
        !parameters[node.outputs[0]->index])
      last[node.module] = i;
  }
  std::vector<std::size_t> makers;
  for (const auto& [module, node] : last) makers.push_back(node);
  std::ranges::sort(makers);
  for (const std::size_t node : makers) {
    const ValueId value = *graph.nodes[node].outputs[0];
    add_line(lines, {.path = folded(graph.nodes[node].module),
                     .is_parameter = false,
                     .shape = graph.at(value).type.shape,
                     .kept = placed.values[value.index],
                     .used = placed.values[value.index],
                     .paths = {graph.nodes[node].module}});
  }
  return lines;
}

// Values on their way to be a gradient: what collectives of gradients read and make.
static std::vector<bool> to_be_gradients(const ir::Graph& local) {
  std::vector<bool> marked(local.values.size());
  for (const auto& result : local.results)
    if (result.role == Role::Gradient) marked[result.value.index] = true;
  for (std::size_t i = local.nodes.size(); i-- > 0;) {
    const ir::Node& node = local.nodes[i];
    // Those that travel in fewer bytes are made of what comes (buckets.h).
    const bool is_back = node.op == "aten::_to_copy" || node.op == "aten::div.Tensor";
    if (!moves(node.op) && !ir::is_view(node.op) && !is_back) continue;
    const bool is_on_the_way = std::ranges::any_of(
        node.outputs, [&](const auto& output) { return output && marked[output->index]; });
    if (!is_on_the_way) continue;
    const auto inputs = ir::inputs_of(node);
    for (const ValueId input : moves(node.op) ? inputs : std::vector{inputs[0]}) marked[input.index] = true;
  }
  return marked;
}

// Of parts that were updated, or of what was packed of them.
static bool is_gather(const ir::Node& node, const ir::Graph& local) {
  if (node.op == "shoal::all_gather_into") return true;
  if (node.op != "shoal::all_gather" && node.op != "shoal::all_to_all") return false;
  const auto& producer = local.at(ir::inputs_of(node)[0]).producer;
  return producer && local.at(*producer).op == "shoal::pack";
}

static std::string purpose_of(const ir::Graph& local, const ir::Node& node,
                              const std::vector<bool>& gradients, const std::vector<bool>& parameters) {
  if (node.op == "shoal::send" || node.op == "shoal::receive") return "stages";
  const auto inputs = ir::inputs_of(node);
  if (parameters[node.outputs[0]->index] || (node.phase == Phase::Update && is_gather(node, local)))
    return "parameters";
  for (auto producer = local.at(inputs[0]).producer; producer;) {  // one axis after the other
    const ir::Node& above = local.at(*producer);
    if (above.op == "shoal::sum_of_squares" || above.op == "shoal::lamb_moments") return "norm";
    if (above.op != "shoal::all_reduce") break;
    producer = local.at(ir::inputs_of(above)[0]).producer;
  }
  return node.phase == Phase::Update || gradients[node.outputs[0]->index] ? "gradients" : "activations";
}

// Into those of its kind.
static void add_traffic(std::vector<Traffic>& all, Traffic traffic) {
  const auto known = std::ranges::find_if(all, [&](const Traffic& other) {
    return std::tie(other.module, other.what, other.op, other.axis, other.phase) ==
           std::tie(traffic.module, traffic.what, traffic.op, traffic.axis, traffic.phase);
  });
  if (known == all.end()) {
    all.push_back(std::move(traffic));
    return;
  }
  known->count += traffic.count;
  known->bytes += traffic.bytes;
}

static std::vector<Traffic> traffic_of(const Mesh& mesh, const ir::Graph& local, int rank) {
  const auto gradients = to_be_gradients(local), parameters = of_parameters(local);
  const auto type_of = [&](ValueId value) -> const ir::TensorType& { return local.at(value).type; };
  std::vector<Traffic> found;
  for (const ir::Node& node : local.nodes) {
    const auto message = sharding::message_of(node, type_of, mesh, rank);
    if (!message) continue;
    const std::string what = purpose_of(local, node, gradients, parameters);
    add_traffic(found, {.module = what == "gradients" || what == "norm" ? "" : folded(node.module),
                        .what = what,
                        .op = std::string(name_of(message->kind)),
                        .axis = message->axis,
                        .phase = node.phase,
                        .count = 1,
                        .bytes = message->bytes()});
  }
  return found;
}

std::vector<RankClass> rank_classes(const Placed& placed, std::string_view pipeline_axis) {
  std::set<std::pair<std::string, Shape>> seen;
  std::vector<std::pair<Layout, Shape>> kinds;
  const auto add = [&](const Layout& layout, const Shape& shape) {
    bool is_new = false;
    for (std::size_t axis = 0; axis < layout.placements.size() && !is_new; ++axis)
      is_new = is_cut(layout, axis);
    if (is_new && seen.emplace(sharding::to_text(layout), shape).second) kinds.emplace_back(layout, shape);
  };
  const ir::Graph& graph = placed.graph;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto inputs = ir::inputs_of(graph.nodes[i]);
    for (std::size_t j = 0; j < inputs.size(); ++j)
      add(placed.nodes[i].in[j], graph.at(inputs[j]).type.shape);
    for (std::size_t j = 0; j < graph.nodes[i].outputs.size(); ++j)
      if (const auto& output = graph.nodes[i].outputs[j])
        add(placed.nodes[i].out[j], graph.at(*output).type.shape);
  }
  for (std::size_t i = 0; i < graph.sources.size(); ++i)
    add(placed.kept[i], graph.at(graph.sources[i].value).type.shape);
  for (std::size_t i = 0; i < graph.results.size(); ++i)
    add(placed.results[i], graph.at(graph.results[i].value).type.shape);
  std::map<std::vector<Shape>, std::size_t> known;
  std::vector<RankClass> classes;
  for (int rank = 0; rank < placed.mesh.size(); ++rank) {
    std::vector<Shape> shapes;
    for (const auto& [layout, shape] : kinds)
      shapes.push_back(sharding::local_shape(placed.mesh, layout, shape, rank));
    for (std::size_t axis = 0; axis < placed.mesh.axes.size(); ++axis)
      if (placed.mesh.axes[axis].name == pipeline_axis)
        shapes.push_back({placed.mesh.coordinate(rank, static_cast<int>(axis))});
    const auto [at, is_new] = known.try_emplace(std::move(shapes), classes.size());
    if (is_new) classes.emplace_back();
    classes[at->second].ranks.push_back(rank);
  }
  return classes;
}

Report report_of(const Placed& placed, const ir::Graph& local, int rank, std::string_view pipeline_axis) {
  Report report;
  std::set<std::string> unknown;
  for (const ir::Node& node : placed.graph.nodes) {
    const auto flops = work_of(placed.graph, node);
    report.flops += flops.value_or(0);
    if (!flops) unknown.insert(node.op);
  }
  report.unknown.assign(unknown.begin(), unknown.end());
  report.shares = shares_of(placed, report.flops, pipeline_axis);
  report.layers = layers_of(placed);
  report.traffic = traffic_of(placed.mesh, local, rank);
  report.whole = whole_ops(placed, pipeline_axis);
  return report;
}

Report of_step(Report microbatch, std::int64_t num_microbatches, const Report& update) {
  for (Traffic& traffic : microbatch.traffic) {
    traffic.count *= num_microbatches;
    traffic.bytes *= num_microbatches;
  }
  for (const Traffic& traffic : update.traffic) add_traffic(microbatch.traffic, traffic);
  return microbatch;
}

}  // namespace shoal::rewrite
