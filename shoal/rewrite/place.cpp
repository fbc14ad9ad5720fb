// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/place.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/views.h"
#include "shoal/rewrite/candidates.h"
#include "shoal/rewrite/decompose.h"
#include "shoal/rewrite/pinned.h"
#include "shoal/rewrite/shared_heads.h"
#include "shoal/sharding/redistribute.h"

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

std::string folded(std::string_view path) {
  std::string text;
  while (!path.empty()) {
    const std::string_view word = path.substr(0, path.find('.'));
    const bool is_number = !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
    text += is_number ? "*" : std::string(word);
    path.remove_prefix(word.size());
    if (path.empty()) break;
    text += '.';
    path.remove_prefix(1);
  }
  return text;
}

static bool is_whole(const Placement& placement) { return std::holds_alternative<Replicate>(placement); }

std::optional<double> bytes_sent(const Placement& from, const Placement& to, double bytes, int ranks) {
  if (from == to) return 0;
  if (is_cut(from) && is_cut(to) && std::get<Shard>(from).dim == std::get<Shard>(to).dim)
    return bytes_sent(from, Replicate{}, bytes, ranks);  // gathered, then each keeps its part
  const auto change = sharding::change_of(from, to);
  if (!change) return std::nullopt;
  const auto collective = sharding::collective_of(*change);
  if (!collective) return 0;
  const double part = bytes / ranks;
  return sharding::sent(*collective, is_cut(from) ? part : bytes, part / ranks, ranks);
}

namespace {

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
      : graph_(graph),
        mesh_(mesh),
        pins_(pins),
        uses_(uses_of(graph)),
        pinned_(pinned_of(graph, mesh, pins, uses_)),
        candidates_(graph, mesh),
        values_(graph.values.size()) {
    for (std::size_t i = 0; i < graph.sources.size(); ++i)
      values_[graph.sources[i].value.index] = {pinned_.used[i]};
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
  // Attention that has fewer heads of keys and values than there are ranks to share its work; and how many it takes.
  const std::map<ir::NodeId, std::int64_t>& heads_wanted() const { return heads_wanted_; }

  Placed finish() && {
    Placed placed = {.mesh = mesh_,
                     .graph = {},
                     .nodes = std::move(nodes_),
                     .again = std::move(again_),
                     .values = {},
                     .kept = std::move(pinned_.kept),
                     .results = std::move(pinned_.results),
                     .gathers_again = pins_.gathers_again};
    for (auto& versions : values_)
      placed.values.push_back(versions.empty() ? replicated() : versions.front());
    return placed;
  }

 private:
  Layout replicated() const { return sharding::replicated(mesh_); }
  const Shape& shape_of(ValueId value) const { return graph_.at(value).type.shape; }

  const ParameterPins* pins_of(const std::string& parameter) const {
    const auto found = pins_.parameters.find(parameter);
    return found == pins_.parameters.end() ? nullptr : &found->second;
  }

  // What is known of a value on an axis: every placement that some node has asked for is there already.
  double cheapest(ValueId value, std::size_t axis, const Placement& wanted) const {
    const auto bytes = static_cast<double>(ir::bytes_of(graph_.at(value).type));
    double best = std::numeric_limits<double>::infinity();
    for (const Layout& layout : values_[value.index]) {
      const Placement& now = layout.placements[axis];
      if (same_parts(now, wanted, shape_of(value), axis)) return 0;
      if (const auto cost = bytes_sent(now, wanted, bytes, mesh_.axes[axis].size))
        best = std::min(best, *cost);
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
      if (const auto pins = pinned_.values.find(*node.outputs[i]); pins != pinned_.values.end())
        for (const auto& [axis, placement] : pins->second) {
          pin_gradients(*node.outputs[i], axis, layout.placements[axis]);
          layout.placements[axis] = placement;
        }
      values_[node.outputs[i]->index] = {std::move(layout)};
    }
  }

  void pin_gradients(ValueId value, std::size_t axis, const Placement& made) {
    const auto gradients = pinned_.gradients_of.find(value);
    if (gradients == pinned_.gradients_of.end() || is_whole(made)) return;
    for (const ValueId gradient : gradients->second)
      if (!is_cut(made) || shape_of(gradient) == shape_of(value))
        pinned_.values[gradient].emplace(axis, is_cut(made) ? made : Placement(Replicate{}));
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
        const auto found = candidates_.choices(node, axis, {now}, again);
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
    const auto decided = std::ranges::find(pins_.decided, axis, &Decided::axis);
    const bool is_decided = decided != pins_.decided.end();
    if (!is_decided && std::ranges::all_of(seen, is_whole)) return;

    Choice best = {.in = std::vector<Placement>(inputs.size(), Replicate{}),
                   .out = std::vector<Placement>(node.outputs.size(), Replicate{})};
    Score lowest = score_of(best, inputs, axis);
    if (is_decided) {
      best = decided->nodes[index];
      lowest = score_of(best, inputs, axis);
    } else {
      for (Choice& choice : candidates_.choices(node, axis, seen, placed)) {
        const Score score = score_of(choice, inputs, axis);
        if (score >= lowest || !candidates_.fits(choice, node, axis, placed)) continue;
        lowest = score;
        best = std::move(choice);
      }
    }
    if (lowest.bytes > 0 || !best.splits())
      if (std::ranges::any_of(seen, is_cut)) hindered_.insert({static_cast<std::uint32_t>(index)});
    set(axis, best, placed);
    if (is_decided) want_heads(node, index, axis, placed);
  }

  // Of attention that runs whole on the axis, or by heads: dim 1 of [batch, heads, positions, width].
  void want_heads(const ir::Node& node, std::size_t index, std::size_t axis, const PlacedNode& placed) {
    constexpr int kHeads = 1;
    const auto inputs = ir::inputs_of(node);
    std::int64_t ranks = mesh_.axes[axis].size;
    for (std::size_t other = axis; other < mesh_.axes.size(); ++other) {
      std::set<int> cut;  // dims
      for (std::size_t i = 0; i < inputs.size(); ++i)
        if (const auto* shard = std::get_if<Shard>(&placed.in[i].placements[other]);
            shard != nullptr && shape_of(inputs[i]).size() == 4)
          cut.insert(shard->dim);
      if (other == axis && !cut.empty() && cut != std::set{kHeads}) return;
      if (other != axis && cut.contains(kHeads)) ranks *= mesh_.axes[other].size;
    }
    if (const std::int64_t heads = heads_for(graph_, node, ranks); heads > 0)
      heads_wanted_.emplace(ir::NodeId{static_cast<std::uint32_t>(index)}, heads);
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

  // Each tensor of an update is where its parameter is updated, of a sum where the sum is; what else it reads
  // is whole.
  void place_update(const ir::Node& node, PlacedNode& placed) {
    if (ir::find(node, "places") != nullptr) return place_push(node, placed);
    const auto* parameters = std::get_if<ir::ValueList>(ir::find(node, "parameters"));
    const auto* gradients = std::get_if<ir::ValueList>(ir::find(node, "gradients"));
    const auto* sums = ir::find(node, "sums");
    std::vector<Layout> updated;
    if (const auto* list = sums == nullptr ? nullptr : std::get_if<ir::ValueList>(sums))
      for (const auto& sum : *list) updated.push_back(pinned_.kept[source_at(*sum)]);
    else if (parameters != nullptr)
      for (std::size_t i = 0; i < parameters->size(); ++i) {
        const auto source =
            pinned_.parameter_at.find(*(*parameters)[i]);  // none: forward wrote to the parameter
        updated.push_back(updated_of(
            source != pinned_.parameter_at.end() ? source->second : parameter_of_gradient(*(*gradients)[i])));
      }
    else if (gradients != nullptr)
      for (const auto& gradient : *gradients) updated.push_back(updated_of(parameter_of_gradient(*gradient)));
    std::size_t next = 0;
    std::vector<Layout> maxima;  // of state in 8 bits; the last outputs
    for (const ir::Argument& argument : node.arguments) {
      if (std::holds_alternative<ValueId>(argument.value)) ++next;
      const auto* list = std::get_if<ir::ValueList>(&argument.value);
      for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
        if (!(*list)[i]) continue;
        const ValueId value = *(*list)[i];
        if (argument.name == "maxima") maxima.push_back(pinned_.kept[source_at(value)]);
        placed.in[next++] = argument.name == "maxima"  ? maxima.back()
                            : is_number(graph_, value) ? replicated()
                                                       : updated.at(i);
      }
    }
    if (parameters == nullptr && sums == nullptr) return;
    const std::size_t others = placed.out.size() - maxima.size();
    for (std::size_t i = 0; i < others; ++i)
      placed.out[i] = is_number(graph_, *node.outputs[i]) ? replicated() : updated.at(i % updated.size());
    std::ranges::copy(maxima, placed.out.begin() + static_cast<std::ptrdiff_t>(others));
  }

  // Gradients of rows as their ids were pulled: each rank those of its part of the ids; of ids that ranks have
  // alike, a summand, and one of these ranks counts them.
  void place_push(const ir::Node& node, PlacedNode& placed) {
    const auto list = [&](std::string_view name) { return std::get<ir::ValueList>(*ir::find(node, name)); };
    const auto tables = list("tables"), ids = list("ids"), places = list("places"), clicks = list("clicks");
    const std::size_t all = ids.size(), first = tables.size();
    std::size_t clicked = first + 4 * all;
    for (std::size_t i = 0; i < all; ++i) {
      const Layout& as_pulled = values_[places[i]->index].front();
      Layout gradient = as_pulled, count = replicated(), of_samples = replicated();
      for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
        if (mesh_.axes[axis].size == 1) continue;
        const Placement& placement = as_pulled.placements[axis];
        if (is_whole(placement)) gradient.placements[axis] = count.placements[axis] = Partial{};
        if (const auto* shard = std::get_if<Shard>(&placement); shard != nullptr && shard->dim == 0)
          of_samples.placements[axis] = placement;
      }
      placed.in[first + i] = placed.in[first + all + i] = as_pulled;
      placed.in[first + 2 * all + i] = gradient;
      placed.in[first + 3 * all + i] = count;
      if (clicks[i]) placed.in[clicked++] = of_samples;
    }
  }

  std::size_t source_at(ValueId value) const {
    const auto found = std::ranges::find(graph_.sources, value, &ir::Source::value);
    SHOAL_CHECK(found != graph_.sources.end(), Internal, "place: %", value.index, " is no source");
    return static_cast<std::size_t>(found - graph_.sources.begin());
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

  // The one cut in which all readers want it; nothing where they differ.
  std::optional<Shard> cut_of_readers(ValueId value, std::size_t axis) const {
    std::optional<Shard> wanted;
    if (uses_.leaves.contains(value) || pinned_.values.contains(value)) return std::nullopt;
    for (const auto& [node, input] : uses_.of[value.index]) {
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
      if (is_reshape(node.op) && Candidates::is_cut_further_out(placed, axis))
        continue;  // they cut what this one leaves
      std::vector<Placement> wanted;
      for (const auto& output : node.outputs) {
        const auto shard = output ? cut_of_readers(*output, axis) : std::nullopt;
        wanted.push_back(shard ? Placement(*shard) : Placement(Replicate{}));
      }
      if (std::ranges::none_of(wanted, is_cut)) continue;
      for (const Choice& choice : choices_for(node, axis, wanted, placed)) {
        if (!agree(choice.out, wanted, node) || !can_slice(choice, node, axis) ||
            !candidates_.fits(choice, node, axis, placed))
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
    auto found = candidates_.choices(node, axis, wanted_as_seen(node, wanted), placed);
    if (is_reshape(node.op))
      if (const auto* shard = std::get_if<Shard>(&wanted.front()))
        if (const auto before = candidates_.seen_through(node, axis, *shard, placed, true))
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
      const bool unread =
          uses_.of[node.outputs[i]->index].empty() && !uses_.leaves.contains(*node.outputs[i]);
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

  const ir::Graph& graph_;
  const Mesh& mesh_;
  const Pins& pins_;
  const Uses uses_;
  Pinned pinned_;
  const Candidates candidates_;
  std::vector<std::vector<Layout>> values_;  // by value: as handed on, then every other way it was asked for
  std::vector<PlacedNode> nodes_;
  std::vector<std::vector<PlacedNode>> again_;
  std::set<ir::NodeId> hindered_;
  std::map<ir::NodeId, std::int64_t> heads_wanted_;
};

}  // namespace

Placed place(ir::Graph graph, const Mesh& mesh, const Pins& pins) {
  return place_with([&](const ir::Graph&) { return pins; }, std::move(graph), mesh);
}

Placed place_with(const PinsFor& pins_for, ir::Graph graph, const Mesh& mesh) {
  while (true) {
    const Pins pins = pins_for(graph);
    Placing placing(graph, mesh, pins);
    placing.run();
    if (!placing.heads_wanted().empty()) {
      graph = with_heads(std::move(graph), placing.heads_wanted());
      continue;
    }
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
