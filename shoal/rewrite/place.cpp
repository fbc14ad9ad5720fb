// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/place.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/views.h"
#include "shoal/rewrite/decompose.h"
#include "shoal/sharding/ops.h"
#include "shoal/sharding/redistribute.h"
#include "shoal/sharding/rules.h"

namespace shoal::rewrite {

using ir::Role;
using ir::ValueId;
using sharding::Layout;
using sharding::Mesh;
using sharding::Partial;
using sharding::Placement;
using sharding::Replicate;
using sharding::Shape;
using sharding::Shard;
using sharding::Strategy;

bool matches(std::string_view pattern, std::string_view path) {
  while (!pattern.empty()) {
    if (pattern.front() == '*') {
      pattern.remove_prefix(1);
      while (true) {
        if (matches(pattern, path)) return true;
        if (path.empty() || path.front() == '.') return false;
        path.remove_prefix(1);
      }
    }
    if (path.empty() || path.front() != pattern.front()) return false;
    pattern.remove_prefix(1);
    path.remove_prefix(1);
  }
  return path.empty();
}

static bool is_reshape(std::string_view op) {
  const auto* rule = sharding::find_rule(op);
  return rule != nullptr && rule->is_reshape;
}

static bool is_cut(const Placement& placement) { return std::holds_alternative<Shard>(placement); }
static bool is_whole(const Placement& placement) { return std::holds_alternative<Replicate>(placement); }

// Bytes that a rank sends for one axis' change, of a value of so many that all have alike; nothing where
// there is no way.
static std::optional<double> cost_of(const Placement& from, const Placement& to, double bytes, int ranks) {
  if (from == to) return 0;
  if (is_cut(from) && is_cut(to) && std::get<Shard>(from).dim == std::get<Shard>(to).dim)
    return cost_of(from, Replicate{}, bytes, ranks);  // gathered, then each keeps its part
  const auto change = sharding::change_of(from, to);
  if (!change) return std::nullopt;
  const auto collective = sharding::collective_of(*change);
  if (!collective) return 0;
  const double part = bytes / ranks;
  return sharding::sent(*collective, is_cut(from) ? part : bytes, part / ranks, ranks);
}

namespace {

// A way to run a node on one axis of the mesh.
struct Choice {
  std::vector<Placement> in, out;
  bool in_parts = false;
  bool may_be_empty = true;

  bool splits() const { return std::ranges::any_of(in, is_cut) || std::ranges::any_of(out, is_cut); }
};

// Lower is better, in this order.
struct Score {
  double bytes = 0;
  bool repeats_work = false;  // every rank does all of it
  int conversions = 0;
  int summands = 0;
  friend auto operator<=>(const Score&, const Score&) = default;
};

class Placing {
 public:
  Placing(const ir::Graph& graph, const Mesh& mesh, const Pins& pins)
      : graph_(graph), mesh_(mesh), pins_(pins), values_(graph.values.size()), uses_(graph.values.size()) {
    find_uses();
    pin_sources();
    pin_results();
    pin_outputs();
  }

  void run() {
    again_.resize(graph_.nodes.size());
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      nodes_.push_back(place(graph_.nodes[i], i));
      if (ir::is_view(graph_.nodes[i].op)) view_again(graph_.nodes[i], i);
    }
    for (std::size_t i = nodes_.size(); i-- > 0;) cut_late(i);
  }

  // Nodes that had to run whole, or had to wait for others, because their op asks for something whole.
  const std::set<ir::NodeId>& hindered() const { return hindered_; }

  Placed finish() && {
    Placed placed = {.mesh = mesh_,
                     .graph = {},
                     .nodes = std::move(nodes_),
                     .again = std::move(again_),
                     .values = {},
                     .kept = std::move(kept_),
                     .results = std::move(results_),
                     .gathers_again = pins_.gathers_again};
    for (auto& versions : values_)
      placed.values.push_back(versions.empty() ? replicated() : versions.front());
    return placed;
  }

 private:
  Layout replicated() const { return sharding::replicated(mesh_); }
  const Shape& shape_of(ValueId value) const { return graph_.at(value).type.shape; }

  void check(const Layout& layout, const Shape& shape, std::string_view what, std::string_view name) const {
    const std::string why = misfit(mesh_, layout, shape);
    SHOAL_CHECK(why.empty(), InvalidInput, "place: ", what, " \"", name, "\" cannot be ", to_text(layout),
                ": ", why);
  }

  const ParameterPins* pins_of(const std::string& parameter) const {
    const auto found = pins_.parameters.find(parameter);
    return found == pins_.parameters.end() ? nullptr : &found->second;
  }

  void pin_sources() {
    for (const auto& source : graph_.sources) {
      Layout kept = replicated(), used = replicated();
      const Role role = graph_.at(source.value).role;
      if (role == Role::Parameter) {
        parameter_at_.emplace(source.value, source.name);
        if (const auto* pins = pins_of(source.name)) {
          kept = pins->kept;
          used = pins->used;
        }
      } else if (role == Role::OptimizerState) {
        if (const auto* pins = pins_of(source.name.substr(0, source.name.rfind('.'))))
          kept = used = of_state(*pins, source.value);
      } else if (role == Role::Input) {
        if (const auto pin = pins_.inputs.find(source.name); pin != pins_.inputs.end())
          kept = used = pin->second;
      }
      check(kept, shape_of(source.value), ir::name_of(role), source.name);
      check(used, shape_of(source.value), ir::name_of(role), source.name);
      kept_.push_back(kept);
      values_[source.value.index] = {used};
    }
  }

  void pin_results() {
    std::set<ValueId> read_before_update;
    for (const auto& node : graph_.nodes)
      if (node.phase != ir::Phase::Update && node.op != "shoal::clip")
        for (const ValueId input : ir::inputs_of(node)) read_before_update.insert(input);
    for (const auto& [role, name, value] : graph_.results) {
      Layout layout = replicated();
      const auto* pins =
          role == Role::OptimizerState ? pins_of(name.substr(0, name.rfind('.'))) : pins_of(name);
      if (role == Role::OptimizerState && pins != nullptr) layout = of_state(*pins, value);
      if (role == Role::Parameter && pins != nullptr) layout = pins->kept;
      if (role == Role::Gradient && pins != nullptr) {
        layout = pins->gradient;
        // Reduced as soon as it is there, unless backward goes on with it.
        if (graph_.at(value).producer && !read_before_update.contains(value))
          for (std::size_t axis = 0; axis < layout.placements.size(); ++axis)
            pinned_[value].emplace(axis, layout.placements[axis]);
      }
      check(layout, shape_of(value), ir::name_of(role), name);
      results_.push_back(layout);
    }
  }

  // The last value of each module that a pin names, as seen from outside of it.
  void pin_outputs() {
    for (const auto& pin : pins_.outputs) {
      std::map<std::string, ValueId> last;
      std::set<std::string> left;  // what uses a module's weight later on is not its output: a tied embedding
      for (const auto& node : graph_.nodes) {
        if (node.phase != ir::Phase::Forward || node.outputs.empty() || !node.outputs[0]) continue;
        for (const auto& [path, value] : last)
          if (!is_within(node.module, path)) left.insert(path);
        for (std::string_view path = node.module;; path = path.substr(0, path.rfind('.'))) {
          if (matches(pin.module, path) && !left.contains(std::string(path)))
            last.insert_or_assign(std::string(path), *node.outputs[0]);
          if (path.find('.') == std::string_view::npos) break;
        }
      }
      SHOAL_CHECK(!last.empty(), InvalidInput, "place: no module is called \"", pin.module, "\"");
      for (const auto& [path, made] : last) {
        const ValueId value = handed_out(made, path);
        find_gradients(path, value);
        for (const auto& [axis, placement] : pin.placements) {
          Layout alone = replicated();
          alone.placements[axis] = placement;
          check(alone, shape_of(value), "the output of module", path);
          const auto [known, is_new] = pinned_[value].try_emplace(axis, placement);
          SHOAL_CHECK(is_new || known->second == placement, InvalidInput, "place: the output of module \"",
                      path, "\" is pinned to ", to_text(known->second), " and to ", to_text(placement),
                      " on axis ", mesh_.axes[axis].name, "; leave one of them out");
        }
      }
    }
  }

  // Clean-ups leave a module's last view to whoever reads it: the pin is on what they read.
  ValueId handed_out(ValueId value, std::string_view path) const {
    while (uses_[value.index].size() == 1 && !leaves_.contains(value)) {
      const ir::Node& reader = graph_.nodes[uses_[value.index][0].node];
      if (!is_reshape(reader.op) || is_within(reader.module, path)) break;
      value = *reader.outputs[0];
    }
    return value;
  }

  static bool is_within(std::string_view module, std::string_view path) {
    return module.starts_with(path) &&
           (module.size() == path.size() || path.empty() || module[path.size()] == '.');
  }

  // The gradient of a module's output: what its part of backward reads that another module's part has made.
  void find_gradients(const std::string& path, ValueId output) {
    auto& found = gradients_of_[output];
    for (const auto& node : graph_.nodes) {
      if (node.phase != ir::Phase::Backward || !is_within(node.module, path)) continue;
      for (const ValueId input : ir::inputs_of(node)) {
        const auto& producer = graph_.at(input).producer;
        if (!producer || graph_.at(*producer).phase != ir::Phase::Backward) continue;
        if (is_within(graph_.at(*producer).module, path)) continue;
        if (ir::num_elements(graph_.at(input).type) != ir::num_elements(graph_.at(output).type)) continue;
        if (std::ranges::find(found, input) == found.end()) found.push_back(input);
      }
    }
  }

  // What is known of a value on an axis: every placement that some node has asked for is there already.
  double cheapest(ValueId value, std::size_t axis, const Placement& wanted) const {
    const auto bytes = static_cast<double>(ir::bytes_of(graph_.at(value).type));
    double best = std::numeric_limits<double>::infinity();
    for (const Layout& layout : values_[value.index]) {
      const Placement& now = layout.placements[axis];
      if (same_parts(now, wanted, shape_of(value), axis)) return 0;
      if (const auto cost = cost_of(now, wanted, bytes, mesh_.axes[axis].size)) best = std::min(best, *cost);
    }
    return best;
  }

  // Two ways to say the same cut.
  bool same_parts(const Placement& a, const Placement& b, const Shape& shape, std::size_t axis) const {
    if (a == b) return true;
    if (!is_cut(a) || !is_cut(b)) return false;
    const Mesh one = {.axes = {mesh_.axes[axis]}};
    const Layout first = {{a}}, second = {{b}};
    if (!misfit(one, first, shape).empty() || !misfit(one, second, shape).empty()) return false;
    for (int rank = 0; rank < one.size(); ++rank)
      if (box_of(one, first, shape, rank) != box_of(one, second, shape, rank)) return false;
    return true;
  }

  const Placement& placement_of(ValueId value, std::size_t axis) const {
    return values_[value.index].front().placements[axis];
  }

  // The rule's strategies, cut as the inputs are cut: with their outer and unit.
  std::vector<Choice> choices(const ir::Node& node, std::size_t axis, const std::vector<Placement>& seen,
                              const PlacedNode& placed) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> grains = {{1, 1}};
    for (const Placement& placement : seen)
      if (const auto* shard = std::get_if<Shard>(&placement))
        if (const std::pair grain(shard->outer, shard->unit);
            std::ranges::find(grains, grain) == grains.end())
          grains.push_back(grain);
    std::vector<Choice> found;
    // What the rule says of a view's dims is of whole ones.
    const bool is_left = is_reshape(node.op) && is_cut_further_in(placed, axis);
    for (const Strategy& strategy : strategies_of(node))
      if (!is_left || (!is_cut(strategy.in.front()) && !is_cut(strategy.out.front())))
        for (const auto& [outer, unit] : grains) add_choice(strategy, outer, unit, found);
    add_through_view(node, axis, seen, placed, found);
    add_blocks(node, seen, found);
    return found;
  }

  const std::vector<Strategy>& strategies_of(const ir::Node& node) const {
    const auto [known, is_new] = strategies_.try_emplace(&node);
    if (is_new) known->second = sharding::strategies(graph_, node);
    return known->second;
  }

  static void add_choice(const Strategy& strategy, std::int64_t outer, std::int64_t unit,
                         std::vector<Choice>& found) {
    if (strategy.in_parts && outer != 1) return;
    Choice choice = {.in = strategy.in,
                     .out = strategy.out,
                     .in_parts = strategy.in_parts,
                     .may_be_empty = strategy.may_be_empty};
    for (auto* list : {&choice.in, &choice.out})
      for (Placement& placement : *list)
        if (auto* shard = std::get_if<Shard>(&placement)) {
          shard->outer *= outer;
          shard->unit *= unit;
        }
    found.push_back(std::move(choice));
  }

  // A view of one input and one output takes cuts that no list of strategies can name.
  void add_through_view(const ir::Node& node, std::size_t axis, const std::vector<Placement>& seen,
                        const PlacedNode& placed, std::vector<Choice>& found) const {
    if (!is_reshape(node.op)) return;
    const auto* shard = std::get_if<Shard>(&seen.front());
    if (shard == nullptr) return;
    const Shape from =
        local_shape(mesh_, further_in(placed.in[0], axis), shape_of(ir::inputs_of(node).front()), 0);
    for (const Shard& same : {*shard, coarsest(*shard, from, axis)})
      if (const auto there = seen_through(node, axis, same, placed)) {
        found.push_back({.in = {same}, .out = {*there}});
        return;
      }
  }

  // As axes further in have cut both sides already, the view is one of what they left; the same on every
  // rank.
  std::optional<Shard> seen_through(const ir::Node& node, std::size_t axis, const Shard& shard,
                                    const PlacedNode& placed, bool backwards = false) const {
    const Layout in = further_in(placed.in[0], axis), out = further_in(placed.out[0], axis);
    const Shape& whole_in = shape_of(ir::inputs_of(node).front());
    const Shape& whole_out = shape_of(*node.outputs.front());
    std::optional<Shard> found;
    for (const int rank : mesh_.corners()) {
      const Shape from = local_shape(mesh_, in, whole_in, rank),
                  to = local_shape(mesh_, out, whole_out, rank);
      const auto seen =
          backwards ? sharding::through_view(to, from, shard) : sharding::through_view(from, to, shard);
      if (!seen || (found && *found != *seen)) return std::nullopt;
      found = seen;
      if (in == replicated()) break;  // all ranks alike
    }
    return found;
  }

  Layout further_in(const Layout& layout, std::size_t axis) const {
    Layout inner = replicated();
    for (std::size_t i = axis + 1; i < inner.placements.size(); ++i)
      if (is_cut(layout.placements[i])) inner.placements[i] = layout.placements[i];
    return inner;
  }
  static bool is_cut_further_out(const PlacedNode& placed, std::size_t axis) {
    for (const auto* layouts : {&placed.in, &placed.out})
      for (const Layout& layout : *layouts)
        if (std::any_of(layout.placements.begin(),
                        layout.placements.begin() + static_cast<std::ptrdiff_t>(axis), is_cut))
          return true;
    return false;
  }
  bool is_cut_further_in(const PlacedNode& placed, std::size_t axis) const {
    return further_in(placed.in[0], axis) != replicated() || further_in(placed.out[0], axis) != replicated();
  }

  // Parts of equal size are cut alike by any unit up to the whole part.
  Shard coarsest(Shard shard, const Shape& shape, std::size_t axis) const {
    const std::int64_t block = shape[static_cast<std::size_t>(shard.dim)] / shard.outer;
    const std::int64_t count = mesh_.axes[axis].size;
    if (block % (count * shard.unit) == 0 && block > 0) shard.unit = block / count;
    return shard;
  }

  // Parts of equal size, one after the other in a dim, are blocks of that dim: [q k v] cut in each of its
  // three blocks are q, k and v cut.
  void add_blocks(const ir::Node& node, const std::vector<Placement>& seen,
                  std::vector<Choice>& found) const {
    const bool splits = node.op == "aten::split.Tensor" || node.op == "aten::split_with_sizes";
    if (!splits && node.op != "aten::cat") return;
    const auto inputs = ir::inputs_of(node);
    ir::ValueList parts = splits ? node.outputs : ir::ValueList(inputs.begin(), inputs.end());
    const Shape& shape = shape_of(*parts.front());
    auto dim = std::get<std::int64_t>(*ir::find(node, "dim"));
    if (dim < 0) dim += static_cast<std::int64_t>(shape.size());
    for (const auto& part : parts)
      if (!part || shape_of(*part) != shape) return;
    const auto count = static_cast<std::int64_t>(parts.size());
    for (const Placement& placement : seen) {
      const auto* shard = std::get_if<Shard>(&placement);
      if (shard == nullptr || shard->dim != dim || (splits && shard->outer % count != 0)) continue;
      Shard part = *shard, all = *shard;
      (splits ? part.outer : all.outer) = splits ? shard->outer / count : shard->outer * count;
      if (splits)
        found.push_back({.in = {all}, .out = std::vector<Placement>(parts.size(), part)});
      else
        found.push_back({.in = std::vector<Placement>(parts.size(), part), .out = {all}});
    }
  }

  PlacedNode place(const ir::Node& node, std::size_t index) {
    const auto inputs = ir::inputs_of(node);
    PlacedNode placed = {.in = std::vector<Layout>(inputs.size(), replicated()),
                         .out = std::vector<Layout>(node.outputs.size(), replicated())};
    if (node.op == "shoal::clip" || node.phase == ir::Phase::Update)
      place_update(node, placed);
    else
      for (std::size_t axis = mesh_.axes.size(); axis-- > 0;)
        if (mesh_.axes[axis].size > 1) place_on(axis, node, index, placed);
    hand_on(node, placed);
    for (std::size_t i = 0; i < inputs.size(); ++i) note_version(inputs[i], placed.in[i]);
    return placed;
  }

  void hand_on(const ir::Node& node, const PlacedNode& placed) {
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (!node.outputs[i]) continue;
      Layout layout = placed.out[i];
      if (const auto pins = pinned_.find(*node.outputs[i]); pins != pinned_.end())
        for (const auto& [axis, placement] : pins->second) {
          pin_gradients(*node.outputs[i], axis, layout.placements[axis]);
          layout.placements[axis] = placement;
        }
      values_[node.outputs[i]->index] = {std::move(layout)};
    }
  }

  void pin_gradients(ValueId value, std::size_t axis, const Placement& made) {
    const auto gradients = gradients_of_.find(value);
    if (gradients == gradients_of_.end() || is_whole(made)) return;
    for (const ValueId gradient : gradients->second)
      if (!is_cut(made) || shape_of(gradient) == shape_of(value))
        pinned_[gradient].emplace(axis, is_cut(made) ? made : Placement(Replicate{}));
  }

  // A view costs nothing, so it is taken again of every layout that its input is there in.
  void view_again(const ir::Node& node, std::size_t index) {
    const auto inputs = ir::inputs_of(node);
    if (inputs.size() != 1 || node.outputs.size() != 1 || !node.outputs[0]) return;
    const auto versions = values_[inputs[0].index];
    for (const Layout& version : versions) {
      if (version == nodes_[index].in[0]) continue;
      PlacedNode again = {.in = {version}, .out = {replicated()}};
      bool fits = true;
      for (std::size_t axis = mesh_.axes.size(); axis-- > 0 && fits;) {
        const Placement& now = version.placements[axis];
        if (is_whole(now)) continue;
        const auto found = choices(node, axis, {now}, again);
        const auto choice =
            std::ranges::find_if(found, [&](const Choice& each) { return each.in[0] == now; });
        fits = choice != found.end();
        if (fits) again.out[0].placements[axis] = choice->out[0];
      }
      if (!fits || !misfit(mesh_, again.out[0], shape_of(*node.outputs[0])).empty()) continue;
      note_version(*node.outputs[0], again.out[0]);
      again_[index].push_back(std::move(again));
    }
  }

  void note_version(ValueId value, const Layout& layout) {
    auto& versions = values_[value.index];
    if (std::ranges::find(versions, layout) == versions.end()) versions.push_back(layout);
  }

  void place_on(std::size_t axis, const ir::Node& node, std::size_t index, PlacedNode& placed) {
    const auto inputs = ir::inputs_of(node);
    std::vector<Placement> seen;
    for (const ValueId input : inputs) seen.push_back(placement_of(input, axis));
    if (std::ranges::all_of(seen, is_whole)) return;

    Choice best = {.in = std::vector<Placement>(inputs.size(), Replicate{}),
                   .out = std::vector<Placement>(node.outputs.size(), Replicate{})};
    Score lowest = score_of(best, inputs, axis);
    for (Choice& choice : choices(node, axis, seen, placed)) {
      const Score score = score_of(choice, inputs, axis);
      if (score >= lowest || !fits(choice, node, axis, placed)) continue;
      lowest = score;
      best = std::move(choice);
    }
    if (lowest.bytes > 0 || !best.splits())
      if (std::ranges::any_of(seen, is_cut)) hindered_.insert({static_cast<std::uint32_t>(index)});
    set(axis, best, placed);
  }

  Score score_of(const Choice& choice, const std::vector<ValueId>& inputs, std::size_t axis) const {
    Score score = {.repeats_work = !choice.splits()};
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      score.bytes += cheapest(inputs[i], axis, choice.in[i]);
      score.conversions += placement_of(inputs[i], axis) != choice.in[i];
    }
    for (const Placement& placement : choice.out)
      score.summands += std::holds_alternative<Partial>(placement);
    return score;
  }

  static void set(std::size_t axis, const Choice& choice, PlacedNode& placed) {
    for (std::size_t i = 0; i < placed.in.size(); ++i) placed.in[i].placements[axis] = choice.in[i];
    for (std::size_t i = 0; i < placed.out.size(); ++i) placed.out[i].placements[axis] = choice.out[i];
    placed.in_parts |= choice.in_parts;
  }

  // Whether the choice goes together with what the axes further in do.
  bool fits(const Choice& choice, const ir::Node& node, std::size_t axis, PlacedNode placed) const {
    set(axis, choice, placed);
    const auto inputs = ir::inputs_of(node);
    const auto good = [&](const Layout& layout, ValueId value) {
      if (!misfit(mesh_, layout, shape_of(value)).empty()) return false;
      return choice.may_be_empty || is_nowhere_empty(layout, shape_of(value));
    };
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (!good(placed.in[i], inputs[i])) return false;
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i] && !good(placed.out[i], *node.outputs[i])) return false;
    return true;
  }

  bool is_nowhere_empty(const Layout& layout, const Shape& shape) const {
    for (const int rank : mesh_.corners())
      if (std::ranges::count(local_shape(mesh_, layout, shape, rank), 0) > 0) return false;
    return true;
  }

  // Each tensor of an update is where its parameter is updated; what else it reads is whole.
  void place_update(const ir::Node& node, PlacedNode& placed) {
    const auto* parameters = std::get_if<ir::ValueList>(ir::find(node, "parameters"));
    const auto* gradients = std::get_if<ir::ValueList>(ir::find(node, "gradients"));
    std::vector<Layout> updated;
    if (parameters != nullptr)
      for (std::size_t i = 0; i < parameters->size(); ++i) {
        const auto source = parameter_at_.find(*(*parameters)[i]);  // none: forward wrote to the parameter
        updated.push_back(updated_of(
            source != parameter_at_.end() ? source->second : parameter_of_gradient(*(*gradients)[i])));
      }
    else if (gradients != nullptr)
      for (const auto& gradient : *gradients) updated.push_back(updated_of(parameter_of_gradient(*gradient)));
    std::size_t next = 0;
    for (const ir::Argument& argument : node.arguments) {
      if (std::holds_alternative<ValueId>(argument.value)) ++next;
      if (const auto* list = std::get_if<ir::ValueList>(&argument.value))
        for (std::size_t i = 0; i < list->size(); ++i)
          if ((*list)[i]) placed.in[next++] = is_number(*(*list)[i]) ? replicated() : updated.at(i);
    }
    if (parameters == nullptr) return;
    for (std::size_t i = 0; i < placed.out.size(); ++i)
      placed.out[i] = is_number(*node.outputs[i]) ? replicated() : updated.at(i % updated.size());
  }

  // What an optimizer keeps of a whole tensor, and every rank has.
  bool is_number(ValueId value) const { return shape_of(value).empty(); }
  Layout of_state(const ParameterPins& pins, ValueId value) const {
    return is_number(value) ? replicated() : pins.updated;
  }

  Layout updated_of(const std::string& parameter) const {
    const auto* pins = pins_of(parameter);
    return pins == nullptr ? replicated() : pins->updated;
  }
  const std::string& parameter_of_gradient(ValueId gradient) const {
    for (const auto& result : graph_.results)
      if (result.role == Role::Gradient && result.value == gradient) return result.name;
    fail(ErrorKind::Internal, "place: %", gradient.index, " is the gradient of no parameter");
  }

  // --- What all readers cut is made cut: masks, position ids, random numbers.

  void find_uses() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const auto inputs = ir::inputs_of(graph_.nodes[i]);
      for (std::size_t j = 0; j < inputs.size(); ++j) uses_[inputs[j].index].push_back({i, j});
    }
    for (const auto& result : graph_.results) leaves_.insert(result.value);
  }

  // The one cut in which all readers want it; nothing where they differ.
  std::optional<Shard> cut_of_readers(ValueId value, std::size_t axis) const {
    std::optional<Shard> wanted;
    if (leaves_.contains(value) || pinned_.contains(value)) return std::nullopt;
    for (const auto& [node, input] : uses_[value.index]) {
      const auto* shard = std::get_if<Shard>(&nodes_[node].in[input].placements[axis]);
      if (shard == nullptr || (wanted && *wanted != *shard)) return std::nullopt;
      wanted = *shard;
    }
    return wanted;
  }

  void cut_late(std::size_t index) {
    const ir::Node& node = graph_.nodes[index];
    PlacedNode& placed = nodes_[index];
    if (node.op == "shoal::clip" || node.phase == ir::Phase::Update || node.outputs.empty()) return;
    for (std::size_t axis = mesh_.axes.size(); axis-- > 0;) {
      if (mesh_.axes[axis].size == 1) continue;
      const auto at_axis = [&](const Layout& layout) { return is_whole(layout.placements[axis]); };
      if (!std::ranges::all_of(placed.in, at_axis) || !std::ranges::all_of(placed.out, at_axis)) continue;
      if (is_reshape(node.op) && is_cut_further_out(placed, axis)) continue;  // they cut what this one leaves
      std::vector<Placement> wanted;
      for (const auto& output : node.outputs) {
        const auto shard = output ? cut_of_readers(*output, axis) : std::nullopt;
        wanted.push_back(shard ? Placement(*shard) : Placement(Replicate{}));
      }
      if (std::ranges::none_of(wanted, is_cut)) continue;
      for (const Choice& choice : choices_for(node, axis, wanted, placed)) {
        if (!agree(choice.out, wanted, node) || !can_slice(choice, node, axis) ||
            !fits(choice, node, axis, placed))
          continue;
        set(axis, choice, placed);
        for (std::size_t i = 0; i < node.outputs.size(); ++i)
          if (node.outputs[i]) values_[node.outputs[i]->index].front() = placed.out[i];
        break;
      }
    }
  }

  std::vector<Choice> choices_for(const ir::Node& node, std::size_t axis,
                                  const std::vector<Placement>& wanted, const PlacedNode& placed) const {
    auto found = choices(node, axis, wanted_as_seen(node, wanted), placed);
    if (is_reshape(node.op))
      if (const auto* shard = std::get_if<Shard>(&wanted.front()))
        if (const auto before = seen_through(node, axis, *shard, placed, true))
          found.push_back({.in = {*before}, .out = {*shard}});
    return found;
  }
  // `choices` takes outer and unit from here.
  static std::vector<Placement> wanted_as_seen(const ir::Node& node, const std::vector<Placement>& wanted) {
    auto seen = wanted;
    if (is_reshape(node.op)) seen.front() = Replicate{};
    return seen;
  }

  // An output that nobody reads may be anything.
  bool agree(const std::vector<Placement>& out, const std::vector<Placement>& wanted,
             const ir::Node& node) const {
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!node.outputs[i]) continue;
      const bool unread = uses_[node.outputs[i]->index].empty() && !leaves_.contains(*node.outputs[i]);
      if (!unread && out[i] != wanted[i]) return false;
    }
    return true;
  }

  bool can_slice(const Choice& choice, const ir::Node& node, std::size_t axis) const {
    const auto inputs = ir::inputs_of(node);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Placement& now = placement_of(inputs[i], axis);
      if (std::holds_alternative<Partial>(choice.in[i])) return false;
      if (!is_whole(now) && now != choice.in[i]) return false;
    }
    return true;
  }

  struct Use {
    std::size_t node, input;
  };

  const ir::Graph& graph_;
  const Mesh& mesh_;
  const Pins& pins_;
  std::map<ValueId, std::string> parameter_at_;
  std::map<ValueId, std::map<std::size_t, Placement>> pinned_;  // values, by axis
  std::vector<std::vector<Layout>> values_;  // by value: as handed on, then every other way it was asked for
  std::vector<std::vector<Use>> uses_;
  std::set<ValueId> leaves_;
  std::map<ValueId, std::vector<ValueId>> gradients_of_;  // of pinned outputs
  std::vector<PlacedNode> nodes_;
  std::vector<std::vector<PlacedNode>> again_;
  std::vector<Layout> kept_, results_;
  std::set<ir::NodeId> hindered_;
  mutable std::map<const ir::Node*, std::vector<Strategy>> strategies_;
};

}  // namespace

Placed place(ir::Graph graph, const Mesh& mesh, const Pins& pins) {
  while (true) {
    Placing placing(graph, mesh, pins);
    placing.run();
    std::set<ir::NodeId> apart;
    for (const ir::NodeId id : placing.hindered())
      if (can_decompose(graph, graph.at(id))) apart.insert(id);
    if (apart.empty()) {
      Placed placed = std::move(placing).finish();
      placed.graph = std::move(graph);
      return placed;
    }
    graph = decompose(std::move(graph), apart);
  }
}

}  // namespace shoal::rewrite
