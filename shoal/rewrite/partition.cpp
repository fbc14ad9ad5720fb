// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/partition.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/rewrite/gathered.h"
#include "shoal/rewrite/local.h"
#include "shoal/rewrite/norms.h"
#include "shoal/rewrite/transfer.h"
#include "shoal/sharding/redistribute.h"
#include "shoal/sharding/rules.h"

namespace shoal::rewrite {

using ir::Phase;
using ir::Role;
using ir::TensorType;
using ir::ValueId;
using sharding::Change;
using sharding::Layout;
using sharding::Mesh;
using sharding::Partial;
using sharding::Placement;
using sharding::Replicate;
using sharding::Shape;
using sharding::Shard;
using sharding::Step;

namespace {

class Partitioning {
 public:
  Partitioning(const Placed& placed, int rank)
      : placed_(placed),
        old_(placed.graph),
        mesh_(placed.mesh),
        rank_(rank),
        place_{mesh_, rank},
        gathered_(gathered_of(placed)),
        versions_(old_.values.size()),
        is_staged_(std::ranges::any_of(old_.nodes, [](const ir::Node& node) { return node.stage > 0; })) {
    made_.form = ir::Form::Local;
    if (!is_staged_) return;
    readers_.resize(old_.values.size());
    for (std::size_t i = 0; i < old_.nodes.size(); ++i) {
      const auto inputs = ir::inputs_of(old_.nodes[i]);
      for (std::size_t j = 0; j < inputs.size(); ++j) readers_[inputs[j].index].emplace_back(i, j);
    }
  }

  ir::Graph run() {
    add_sources();
    for (std::size_t i = 0; i < old_.nodes.size(); ++i) {
      const ir::Node& node = old_.nodes[i];
      if (node.phase != Phase::Forward && phase_ == Phase::Forward) forget_gathered();
      phase_ = node.phase;
      module_ = node.module;
      stage_ = node.stage;
      if (node.op == "shoal::clip")
        add_norm(node, placed_.nodes[i]);
      else
        add(node, placed_.nodes[i]);
    }
    add_results();
    return std::move(made_);
  }

 private:
  // What there is of a value of the whole graph on this rank.
  struct Version {
    Layout layout;
    ValueId id;
    int stage = 0;                 // that brought it here
    Phase phase = Phase::Forward;  // likewise
  };

  Shape local_shape(const Layout& layout, ValueId value) const {
    return sharding::local_shape(mesh_, layout, old_.at(value).type.shape, rank_);
  }
  TensorType type_in(const Layout& layout, ValueId value) const {
    return local_type(place_, layout, old_.at(value).type);
  }

  void add_sources() {
    for (std::size_t i = 0; i < old_.sources.size(); ++i) {
      const auto& source = old_.sources[i];
      const Layout& kept = placed_.kept[i];
      TensorType type = old_.at(source.value).type;
      if (Shape shape = local_shape(kept, source.value); shape != type.shape)
        type = ir::contiguous(type.dtype, std::move(shape));
      versions_[source.value.index].push_back(
          {kept, made_.add_source(old_.at(source.value).role, source.name, type, source.fingerprint)});
    }
  }

  void forget_gathered() {
    if (!placed_.gathers_again) return;
    for (std::size_t value = 0; value < versions_.size(); ++value) {
      if (!gathered_.values[value]) continue;
      auto& versions = versions_[value];
      const bool is_source = !old_.values[value].producer;
      versions.resize(is_source ? 1 : 0, Version{{}, {}});
    }
  }

  bool same_parts(const Layout& a, const Layout& b, ValueId value) const {
    return rewrite::same_parts(mesh_, a, b, old_.at(value).type.shape);
  }

  std::vector<Step> steps(ValueId value, const Layout& from, const Layout& to) const {
    const TensorType& type = old_.at(value).type;
    return sharding::redistribution(mesh_, type.shape, ir::bytes_of({type.dtype, {1}, {1}}), from, to);
  }

  // The value in that layout, brought there if it is not.
  ValueId get(ValueId value, const Layout& wanted) {
    auto& versions = versions_[value.index];
    if (versions.empty()) make_again(value);
    const bool is_source = !old_.at(value).producer;
    const auto is_here = [&](const Version& version) {  // each stage gathers a parameter for itself
      return &version == &versions.front() || (is_source ? version.stage == stage_ : has_run(version));
    };
    for (const Version& version : versions)
      if (is_here(version) && same_parts(version.layout, wanted, value)) return version.id;
    if (const auto view = viewed_again(value, wanted)) return *view;
    const int reader = stage_;
    if (is_staged_ && !is_source) stage_ = first_to_read(value, wanted);
    std::optional<std::vector<Step>> best;
    Version from;
    std::int64_t lowest = 0;
    for (const Version& version : versions) {
      if (!is_here(version)) continue;
      auto way = steps(value, version.layout, wanted);
      std::int64_t bytes = 0;
      for (const Step& step : way) bytes += step.bytes;
      if (best && bytes >= lowest) continue;
      best = std::move(way);
      lowest = bytes;
      from = version;
    }
    const ValueId made = follow(value, from, *best);
    versions_[value.index].push_back({wanted, made, stage_, phase_});
    stage_ = reader;
    return made;
  }

  // Of a pipeline: forward runs from the first stage on, backward from the last.
  bool has_run(const Version& version) const {
    if (!is_staged_ || version.phase != phase_) return true;
    return phase_ == Phase::Forward ? version.stage <= stage_ : version.stage >= stage_;
  }
  // Of the stages that read the value so in this phase, the one that runs first, wherever its node stands: what it is
  // brought to is there for all of them.
  int first_to_read(ValueId value, const Layout& wanted) const {
    int first = stage_;
    for (const auto& [node, input] : readers_[value.index]) {
      const auto& [phase, stage] = std::tie(old_.nodes[node].phase, old_.nodes[node].stage);
      if (phase == phase_ && same_parts(placed_.nodes[node].in[input], wanted, value))
        first = phase_ == Phase::Forward ? std::min(first, stage) : std::max(first, stage);
    }
    return first;
  }

  // A view of what its input has been brought to already.
  std::optional<ValueId> viewed_again(ValueId value, const Layout& wanted) {
    const auto& producer = old_.at(value).producer;
    if (!producer) return std::nullopt;
    const ir::Node& node = old_.at(*producer);
    for (const PlacedNode& again : placed_.again[producer->index]) {
      if (!same_parts(again.out[0], wanted, value)) continue;
      const ValueId input = ir::inputs_of(node)[0];
      const bool is_there = std::ranges::any_of(versions_[input.index], [&](const Version& version) {
        return has_run(version) && same_parts(version.layout, again.in[0], input);
      });
      if (!is_there && !viewed_again(input, again.in[0])) continue;
      auto versions = std::move(versions_[value.index]);
      add(node, again);
      Version made = versions_[value.index].front();
      versions.push_back(made);
      versions_[value.index] = std::move(versions);
      return made.id;
    }
    return std::nullopt;
  }

  void make_again(ValueId value) {
    const auto& producer = old_.at(value).producer;
    SHOAL_CHECK(producer && gathered_.contains(value), Internal, "partition: %", value.index,
                " is read before it is made");
    add(old_.at(*producer), placed_.nodes[producer->index]);
  }

  ValueId follow(ValueId value, Version at, const std::vector<Step>& way) {
    for (const Step& step : way) {
      Layout after = at.layout;
      after.placements[static_cast<std::size_t>(step.axis)] = step.to;
      at = {after, take(step, at, after, value)};
    }
    return at.id;
  }

  // One axis' change of one value.
  ValueId take(const Step& step, const Version& at, const Layout& after, ValueId value) {
    if (collective_of(step.change)) return transfer(step, value, at, after);
    ir::Node node = kept_part(place_, step, at.id);
    node.phase = phase_;
    node.module = module_;
    node.stage = stage_;
    TensorType type = type_in(after, value);
    if (step.change == Change::Slice) type = ir::contiguous(type.dtype, std::move(type.shape));
    const ValueId made = *made_.at(made_.add_node(std::move(node), {std::move(type)})).outputs[0];
    made_.values[made.index].role = role_of(value);
    return made;
  }

  // Where it is made; a source is everywhere.
  int stage_of(ValueId value) const {
    const auto& producer = old_.at(value).producer;
    return producer ? old_.at(*producer).stage : 0;
  }

  // Roles that sources have stay theirs.
  Role role_of(ValueId value) const {
    const Role role = old_.at(value).role;
    return old_.at(value).producer ? role : phase_ == Phase::Forward ? Role::Activation : Role::Gradient;
  }

  // The message of a value that takes that change; `over`: written over a source.
  ValueId transfer(const Step& step, ValueId value, const Version& at, const Layout& after,
                   std::optional<ValueId> over = {}) {
    Parcel parcel = parcel_of(place_, step, old_.at(value).type, at.layout, after);
    parcel.from = at.id;
    parcel.over = over;
    if (over) parcel.to = made_.at(*over).type;
    Journey journey = journey_of(place_, step);
    journey.phase = phase_;
    journey.module = module_;
    journey.stage = stage_;
    const auto id =
        made_.add_node(transfer_of(journey, {parcel}, {ir::bytes_of(old_.at(value).type)}), {parcel.to});
    const ValueId made = *made_.at(id).outputs[0];
    made_.values[made.index].role = role_of(value);
    return made;
  }

  sharding::Box box_of(const Layout& layout, ValueId value) const {
    return sharding::box_of(mesh_, layout, old_.at(value).type.shape, rank_);
  }

  void add(const ir::Node& node, const PlacedNode& placed) {
    const auto inputs = ir::inputs_of(node);
    std::vector<ValueId> from;
    std::vector<sharding::Box> in;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (node.phase == Phase::Update) stage_ = stage_of(inputs[i]);
      from.push_back(get(inputs[i], placed.in[i]));
      in.push_back(box_of(placed.in[i], inputs[i]));
    }
    std::vector<std::optional<sharding::Box>> out;
    std::vector<std::optional<TensorType>> types;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const auto& output = node.outputs[i];
      out.push_back(output ? std::optional(box_of(placed.out[i], *output)) : std::nullopt);
      types.push_back(output ? std::optional(type_in(placed.out[i], *output)) : std::nullopt);
    }
    fit_reserve(old_, node, in, types);
    std::size_t next = 0;
    ir::Node local = ir::with_inputs(sharding::localized(old_, node, in, out, placed.in_parts),
                                     [&](ValueId) { return from[next++]; });
    cut_split(local, types);
    local.phase = std::max(local.phase, phase_ == Phase::Update ? local.phase : phase_);
    local.outputs.clear();
    if (ir::find(node, "draws") != nullptr) add_places(local, node, in);
    const auto outputs = node.op == "shoal::lamb"
                             ? add_lamb(made_, place_, std::move(local), placed.in, types)
                             : made_.at(made_.add_node(std::move(local), types)).outputs;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (!node.outputs[i]) continue;
      const ValueId output = *node.outputs[i];
      Version version = {placed.out[i], *outputs[i]};
      made_.values[version.id.index].role = old_.at(output).role;
      const Layout& handed_on = placed_.values[output.index];
      const bool is_again = &placed != &placed_.nodes[old_.at(output).producer->index];
      if (!is_again && !same_parts(version.layout, handed_on, output))
        version = {handed_on, follow(output, version, steps(output, version.layout, handed_on))};
      versions_[output.index] = {std::move(version)};
    }
  }

  // Of an update that rounds by chance: where in the whole tensors its parts are. Parameters come first.
  void add_places(ir::Node& local, const ir::Node& node, const std::vector<sharding::Box>& in) const {
    const auto parameters = ir::inputs_of(node);
    std::vector<std::int64_t> words;
    for (std::size_t i = 0; i < std::get<ir::ValueList>(*ir::find(node, "parameters")).size(); ++i) {
      const Shape& shape = old_.at(parameters[i]).type.shape;
      words.push_back(std::ssize(shape));
      words.insert(words.end(), shape.begin(), shape.end());
      for (const auto& ranges : in[i].dims) {
        words.push_back(std::ssize(ranges));
        for (const auto& [begin, end] : ranges) words.insert(words.end(), {begin, end});
      }
    }
    local.arguments.push_back({"places", std::move(words)});
  }

  // A split whose dim is cut, block by block, says the parts' local sizes.
  static void cut_split(ir::Node& local, const std::vector<std::optional<TensorType>>& types) {
    if (local.op != "aten::split.Tensor" && local.op != "aten::split_with_sizes") return;
    const auto& shape = types.front()->shape;
    auto dim = std::get<std::int64_t>(*ir::find(local, "dim"));
    if (dim < 0) dim += static_cast<std::int64_t>(shape.size());
    std::vector<std::int64_t> sizes;
    for (const auto& type : types) {
      if (!type) return;
      sizes.push_back(type->shape[static_cast<std::size_t>(dim)]);
    }
    local.op = "aten::split_with_sizes";
    local.arguments = {{"self", *ir::find(local, "self")}, {"split_sizes", sizes}, {"dim", dim}};
  }

  void add_norm(const ir::Node& node, const PlacedNode& placed) {
    const auto inputs = ir::inputs_of(node);
    std::vector<ValueId> gradients;
    for (std::size_t i = 0; i < inputs.size(); ++i) gradients.push_back(get(inputs[i], placed.in[i]));
    const auto outputs = add_clip(made_, place_, node, gradients, placed.in, old_.at(*node.outputs[0]).type);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      versions_[node.outputs[i]->index] = {{sharding::replicated(mesh_), outputs[i]}};
  }

  void add_results() {
    gather_parameters();
    for (std::size_t i = 0; i < old_.results.size(); ++i) {
      const auto& [role, name, value] = old_.results[i];
      phase_ = role == Role::Parameter || role == Role::OptimizerState ? Phase::Update : Phase::Backward;
      // What forward has made goes to later stages with forward.
      const auto& producer = old_.at(value).producer;
      if (is_staged_ && producer && old_.at(*producer).phase == Phase::Forward) phase_ = Phase::Forward;
      module_ = "";
      stage_ = stage_of(value);
      const ValueId made = get(value, placed_.results[i]);
      made_.add_result(role, name, made);
    }
  }

  // Parameters that are updated in parts and kept whole are written over in place.
  void gather_parameters() {
    phase_ = Phase::Update;
    module_ = "";
    stage_ = 0;
    for (std::size_t i = 0; i < old_.results.size(); ++i) {
      const auto& [role, name, value] = old_.results[i];
      if (role != Role::Parameter) continue;
      const Layout& kept = placed_.results[i];
      const Version updated = versions_[value.index].front();
      if (same_parts(updated.layout, kept, value)) continue;
      const auto way = steps(value, updated.layout, kept);
      if (way.size() != 1 || way[0].change != Change::AllGather) continue;
      versions_[value.index].push_back({kept, transfer(way[0], value, updated, kept, source_of(name))});
    }
  }

  ValueId source_of(const std::string& parameter) const {
    for (const auto& each : old_.sources)
      if (each.name == parameter && old_.at(each.value).role == Role::Parameter)
        return versions_[each.value.index].front().id;
    fail(ErrorKind::Internal, "partition: there is no parameter ", parameter);
  }

  const Placed& placed_;
  const ir::Graph& old_;
  const Mesh& mesh_;
  const int rank_;
  const Place place_;
  const Gathered gathered_;
  ir::Graph made_;
  std::vector<std::vector<Version>> versions_;  // by value of the whole graph
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>>
      readers_;                   // likewise: node and input, of stages
  Phase phase_ = Phase::Forward;  // of what is being added
  std::string module_;
  int stage_ = 0;
  const bool is_staged_;
};

}  // namespace

ir::Graph partition(const Placed& placed, int rank) { return Partitioning(placed, rank).run(); }

}  // namespace shoal::rewrite
