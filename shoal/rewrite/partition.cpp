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
#include "shoal/ir/views.h"
#include "shoal/rewrite/packing.h"
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

// What a rank holds lies as the whole does: the same order of dims, without gaps; what is expanded stays so.
static TensorType local_type(const TensorType& whole, Shape shape) {
  if (shape == whole.shape) return whole;
  std::vector<std::size_t> order(shape.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return whole.strides[a] > whole.strides[b]; });
  TensorType type = {.dtype = whole.dtype, .shape = std::move(shape), .strides = {}};
  type.strides.resize(type.shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    if (whole.strides[order[i]] == 0 && whole.shape[order[i]] > 1) continue;
    type.strides[order[i]] = stride;
    stride *= std::max<std::int64_t>(type.shape[order[i]], 1);
  }
  return type;
}

namespace {

class Partitioning {
 public:
  Partitioning(const Placed& placed, int rank, const PartitionOptions& options)
      : placed_(placed),
        old_(placed.graph),
        mesh_(placed.mesh),
        rank_(rank),
        options_(options),
        versions_(old_.values.size()) {
    made_.form = ir::Form::Local;
  }

  ir::Graph run() {
    add_sources();
    find_gathered();
    find_gradients();
    for (std::size_t i = 0; i < old_.nodes.size(); ++i) {
      const ir::Node& node = old_.nodes[i];
      if (node.phase != Phase::Forward && phase_ == Phase::Forward) forget_gathered();
      if (node.phase == Phase::Update && phase_ != Phase::Update) flush();
      phase_ = node.phase;
      module_ = node.module;
      if (node.op == "shoal::clip")
        add_clip(node, placed_.nodes[i]);
      else
        add(node, placed_.nodes[i]);
      reduce_gradients(node);
    }
    flush();
    add_results();
    return std::move(made_);
  }

 private:
  // What there is of a value of the whole graph on this rank.
  struct Version {
    Layout layout;
    ValueId id;
  };

  // Gradients on their way to the same steps, reduced together.
  struct Bucket {
    std::vector<ValueId> values;  // of the whole graph
    std::int64_t bytes = 0;
  };

  Shape local_shape(const Layout& layout, ValueId value) const {
    return sharding::local_shape(mesh_, layout, old_.at(value).type.shape, rank_);
  }
  TensorType type_in(const Layout& layout, ValueId value) const {
    return local_type(old_.at(value).type, local_shape(layout, value));
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

  // Parameters that are gathered for use, and views and casts of them: made anew for backward.
  void find_gathered() {
    gathered_.resize(old_.values.size());
    std::map<ValueId, ValueId> roots;  // from a view to the parameter
    for (std::size_t i = 0; i < old_.sources.size(); ++i) {
      const ValueId value = old_.sources[i].value;
      gathered_[value.index] =
          old_.at(value).role == Role::Parameter && placed_.kept[i] != placed_.values[value.index];
    }
    for (const ir::Node& node : old_.nodes) {
      const auto inputs = ir::inputs_of(node);
      if (inputs.size() != 1 || !gathered_[inputs[0].index]) continue;
      if (!ir::is_view(node.op) && node.op != "aten::_to_copy") continue;
      for (const auto& output : node.outputs) {
        if (!output) continue;
        gathered_[output->index] = true;
        roots.try_emplace(*output, roots.contains(inputs[0]) ? roots.at(inputs[0]) : inputs[0]);
      }
    }
    find_first_uses(roots);
  }

  // In which order forward and backward ask for gathered parameters, through views or not.
  void find_first_uses(const std::map<ValueId, ValueId>& roots) {
    for (const ir::Node& node : old_.nodes) {
      if (node.phase == Phase::Update) continue;
      auto& order = first_uses_[node.phase == Phase::Forward ? 0 : 1];
      for (const ValueId input : ir::inputs_of(node)) {
        if (!gathered_[input.index]) continue;
        const auto root = roots.find(input);
        const ValueId source = root == roots.end() ? input : root->second;
        if (std::ranges::find(order, source) == order.end()) order.push_back(source);
      }
    }
  }

  void forget_gathered() {
    if (!placed_.gathers_again) return;
    for (std::size_t value = 0; value < gathered_.size(); ++value) {
      if (!gathered_[value]) continue;
      auto& versions = versions_[value];
      const bool is_source = !old_.values[value].producer;
      versions.resize(is_source ? 1 : 0, Version{{}, {}});
    }
  }

  void find_gradients() {
    for (std::size_t i = 0; i < old_.results.size(); ++i)
      if (old_.results[i].role == Role::Gradient) gradients_.insert(old_.results[i].value);
  }

  bool same_parts(const Layout& a, const Layout& b, ValueId value) const {
    if (a == b) return true;
    const auto is_partial = [](const Placement& placement) {
      return std::holds_alternative<Partial>(placement);
    };
    for (std::size_t axis = 0; axis < a.placements.size(); ++axis)
      if ((is_partial(a.placements[axis]) || is_partial(b.placements[axis])) &&
          a.placements[axis] != b.placements[axis])
        return false;
    const Shape& shape = old_.at(value).type.shape;
    for (int rank = 0; rank < mesh_.size(); ++rank)
      if (sharding::box_of(mesh_, a, shape, rank) != sharding::box_of(mesh_, b, shape, rank)) return false;
    return true;
  }

  std::vector<Step> steps(ValueId value, const Layout& from, const Layout& to) const {
    const TensorType& type = old_.at(value).type;
    return sharding::redistribution(mesh_, type.shape, ir::bytes_of({type.dtype, {1}, {1}}), from, to);
  }

  // The value in that layout, brought there if it is not.
  ValueId get(ValueId value, const Layout& wanted) {
    if (pending_.contains(value)) flush();
    auto& versions = versions_[value.index];
    if (versions.empty()) make_again(value);
    for (const Version& version : versions)
      if (same_parts(version.layout, wanted, value)) return version.id;
    if (const auto view = viewed_again(value, wanted)) return *view;
    if (gathered_[value.index] && !old_.at(value).producer && wanted == placed_.values[value.index])
      if (const auto whole = gather_ahead(value)) return *whole;
    std::optional<std::vector<Step>> best;
    Version from;
    std::int64_t lowest = 0;
    for (const Version& version : versions) {
      auto way = steps(value, version.layout, wanted);
      std::int64_t bytes = 0;
      for (const Step& step : way) bytes += step.bytes;
      if (best && bytes >= lowest) continue;
      best = std::move(way);
      lowest = bytes;
      from = version;
    }
    const ValueId made = follow(value, from, *best);
    versions_[value.index].push_back({wanted, made});
    return made;
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
        return same_parts(version.layout, again.in[0], input);
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

  // Small parameters are gathered together with those that are used soon after.
  std::optional<ValueId> gather_ahead(ValueId value) {
    const auto& order = first_uses_[phase_ == Phase::Forward ? 0 : 1];
    auto next = std::ranges::find(order, value);
    std::vector<ValueId> values, from;
    std::vector<Step> now;
    std::vector<Layout> before, after;
    std::int64_t bytes = 0;
    for (; next != order.end() && bytes < options_.gather_bytes; ++next) {
      const Layout& used = placed_.values[next->index];
      const auto& versions = versions_[next->index];
      if (versions.size() > 1 || old_.at(*next).type.dtype != old_.at(value).type.dtype) continue;
      const auto way = steps(*next, versions.front().layout, used);
      if (way.size() != 1 || way[0].change != Change::AllGather) continue;
      if (!now.empty() && way[0].axis != now.front().axis) continue;
      if (!values.empty() && bytes + ir::bytes_of(old_.at(*next).type) > options_.gather_bytes) break;
      bytes += ir::bytes_of(old_.at(*next).type);
      values.push_back(*next);
      from.push_back(versions.front().id);
      now.push_back(way[0]);
      before.push_back(versions.front().layout);
      after.push_back(used);
    }
    if (values.empty() || values.front() != value) return std::nullopt;
    const auto made = collective(now, from, values, before, after);
    for (std::size_t i = 0; i < made.size(); ++i) versions_[values[i].index].push_back({after[i], made[i]});
    return made.front();
  }

  void make_again(ValueId value) {
    const auto& producer = old_.at(value).producer;
    SHOAL_CHECK(producer && gathered_[value.index], Internal, "partition: %", value.index,
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
    const auto index = static_cast<std::size_t>(step.axis);
    TensorType type = type_in(after, value);
    switch (step.change) {
      case Change::AllReduce:
      case Change::ReduceScatter:
      case Change::AllGather:
      case Change::AllToAll: return collective({step}, {at.id}, {value}, {at.layout}, {after})[0];
      case Change::Slice: {
        const auto& shard = std::get<Shard>(step.to);
        return add_one("shoal::part",
                       {{"self", at.id},
                        {"dim", std::int64_t{shard.dim}},
                        {"outer", shard.outer},
                        {"unit", shard.unit},
                        {"index", std::int64_t{mesh_.coordinate(rank_, step.axis)}},
                        {"count", std::int64_t{mesh_.axes[index].size}}},
                       type, value);
      }
      case Change::KeepOnFirst: {
        const double neutral = neutral_of(std::get<Partial>(step.to).combine);
        if (mesh_.coordinate(rank_, step.axis) == 0)
          return add_one("aten::alias", {{"self", at.id}}, type, value);
        return add_one("aten::full_like",
                       {{"self", at.id},
                        {"fill_value", neutral},
                        {"dtype", {}},
                        {"layout", {}},
                        {"device", {}},
                        {"pin_memory", {}},
                        {"memory_format", {}}},
                       type, value);
      }
    }
    fail(ErrorKind::Internal, "partition: a change of no kind");
  }

  static double neutral_of(sharding::Combine combine) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    switch (combine) {
      case sharding::Combine::Sum: return 0;
      case sharding::Combine::Min: return kInfinity;
      case sharding::Combine::Max: return -kInfinity;
    }
    return 0;
  }

  static TensorType contiguous(const TensorType& type) { return ir::contiguous(type.dtype, type.shape); }

  ValueId add_one(std::string op, std::vector<ir::Argument> arguments, TensorType type, ValueId value) {
    const auto id = made_.add_node({.op = std::move(op),
                                    .arguments = std::move(arguments),
                                    .outputs = {},
                                    .phase = phase_,
                                    .module = module_},
                                   {std::move(type)});
    const ValueId made = *made_.at(id).outputs[0];
    made_.values[made.index].role = role_of(value);
    return made;
  }

  // Roles that sources have stay theirs.
  Role role_of(ValueId value) const {
    const Role role = old_.at(value).role;
    return old_.at(value).producer ? role : phase_ == Phase::Forward ? Role::Activation : Role::Gradient;
  }

  // A collective on several values that take the same change on the same axis.
  std::vector<ValueId> collective(const std::vector<Step>& steps, const std::vector<ValueId>& from,
                                  const std::vector<ValueId>& values, const std::vector<Layout>& before,
                                  const std::vector<Layout>& after) {
    std::vector<Parcel> parcels;
    for (std::size_t i = 0; i < values.size(); ++i) {
      parcels.push_back(parcel(steps[i], values[i], before[i], after[i]));
      parcels.back().from = from[i];
    }
    return send(made_, journey(steps.front()), parcels);
  }

  Journey journey(const Step& step) const {
    const auto& axis = mesh_.axes[static_cast<std::size_t>(step.axis)];
    const auto* partial = std::get_if<Partial>(&step.from);
    return {.kind = *collective_of(step.change),
            .axis = axis.name,
            .index = mesh_.coordinate(rank_, step.axis),
            .ranks = axis.size,
            .combine = partial == nullptr ? std::nullopt : std::optional(partial->combine),
            .phase = phase_,
            .module = module_};
  }

  Parcel parcel(const Step& step, ValueId value, const Layout& before, const Layout& after) const {
    Parcel parcel = {
        .from = {}, .to = contiguous(type_in(after, value)), .role = role_of(value), .shard = {}};
    const auto* cut = std::get_if<Shard>(step.change == Change::AllGather ? &step.from : &step.to);
    const Shape& shape = old_.at(value).type.shape;
    Layout whole = before;
    whole.placements[static_cast<std::size_t>(step.axis)] = Replicate{};
    const auto bytes_on = [&](int rank) {
      return ir::bytes_of(ir::contiguous(parcel.to.dtype, sharding::local_shape(mesh_, whole, shape, rank)));
    };
    parcel.is_small = bytes_on(0) > 0 && bytes_on(0) < kSmall;  // the first rank has the largest parts
    if (cut == nullptr) return parcel;
    const auto size_on = [&](int rank, int dim) {
      return sharding::local_shape(mesh_, whole, shape, rank)[static_cast<std::size_t>(dim)];
    };
    parcel.shard = *cut;
    parcel.whole = size_on(rank_, cut->dim);
    const std::int64_t unit = cut->outer * cut->unit * mesh_.axes[static_cast<std::size_t>(step.axis)].size;
    for (const int rank : mesh_.corners()) parcel.is_even &= size_on(rank, cut->dim) % unit == 0;
    if (step.change == Change::AllToAll) {
      parcel.before = std::get<Shard>(step.from);
      parcel.whole_before = size_on(rank_, parcel.before->dim);
    }
    return parcel;
  }

  sharding::Box box_of(const Layout& layout, ValueId value) const {
    return sharding::box_of(mesh_, layout, old_.at(value).type.shape, rank_);
  }

  void add(const ir::Node& node, const PlacedNode& placed) {
    const auto inputs = ir::inputs_of(node);
    std::vector<ValueId> from;
    std::vector<sharding::Box> in;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
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
    std::size_t next = 0;
    ir::Node local = ir::with_inputs(sharding::localized(old_, node, in, out, placed.in_parts),
                                     [&](ValueId) { return from[next++]; });
    cut_split(local, types);
    local.phase = std::max(local.phase, phase_ == Phase::Update ? local.phase : phase_);
    local.outputs.clear();
    const auto axes = node.op == "shoal::lamb" ? axes_of_norms(placed, types.size() / 3) : std::vector<int>{};
    const auto outputs = axes.empty() ? made_.at(made_.add_node(std::move(local), types)).outputs
                                      : add_lamb(local, placed, types, axes);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (!node.outputs[i]) continue;
      const ValueId output = *node.outputs[i];
      Version version = {placed.out[i], *outputs[i]};
      made_.values[version.id.index].role = old_.at(output).role;
      const Layout& handed_on = placed_.values[output.index];
      const bool is_again = &placed != &placed_.nodes[old_.at(output).producer->index];
      if (!is_again && !gradients_.contains(output) && !same_parts(version.layout, handed_on, output))
        version = {handed_on, follow(output, version, steps(output, version.layout, handed_on))};
      versions_[output.index] = {std::move(version)};
    }
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

  // --- LAMB looks at the norm of each whole tensor: summed over the axes that cut any of them.

  std::vector<int> axes_of_norms(const PlacedNode& placed, std::size_t count) const {
    std::vector<int> axes;
    for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis)
      if (mesh_.axes[axis].size > 1 && std::any_of(placed.in.begin(), placed.in.begin() + ptrdiff(count),
                                                   [&](const Layout& layout) { return cuts(layout, axis); }))
        axes.push_back(static_cast<int>(axis));
    return axes;
  }
  static std::ptrdiff_t ptrdiff(std::size_t count) { return static_cast<std::ptrdiff_t>(count); }
  static bool cuts(const Layout& layout, std::size_t axis) {
    return std::holds_alternative<Shard>(layout.placements[axis]);
  }

  // Moments and norms, the norms of all ranks, and the step. Of a tensor that an axis does not cut, the first
  // rank along it speaks for all.
  std::vector<std::optional<ValueId>> add_lamb(const ir::Node& local, const PlacedNode& placed,
                                               const std::vector<std::optional<TensorType>>& types,
                                               const std::vector<int>& axes) {
    const std::size_t count = types.size() / 3;
    std::vector<std::int64_t> adds(count, 1);
    for (const int axis : axes)
      for (std::size_t i = 0; i < count; ++i)
        if (mesh_.coordinate(rank_, axis) > 0 && !cuts(placed.in[i], static_cast<std::size_t>(axis)))
          adds[i] = 0;
    ir::Node moments = local, step = local;
    moments.op = "shoal::lamb_moments";
    moments.arguments.push_back({"adds", adds});
    auto with_norms = types;
    with_norms.emplace_back(ir::contiguous(DType::Float64, {2 * static_cast<std::int64_t>(count)}));
    const auto made = made_.at(made_.add_node(std::move(moments), with_norms)).outputs;
    ValueId norms = *made.back();
    for (const int axis : axes)
      norms = send(made_,
                   {.kind = sharding::Collective::AllReduce,
                    .axis = mesh_.axes[static_cast<std::size_t>(axis)].name,
                    .index = mesh_.coordinate(rank_, axis),
                    .ranks = mesh_.axes[static_cast<std::size_t>(axis)].size,
                    .combine = sharding::Combine::Sum,
                    .phase = local.phase,
                    .module = local.module},
                   {{.from = norms, .to = *with_norms.back(), .shard = {}}})[0];
    const auto list = [&](std::size_t which) {
      return ir::ValueList(made.begin() + ptrdiff(which * count),
                           made.begin() + ptrdiff((which + 1) * count));
    };
    step.op = "shoal::lamb_step";
    std::erase_if(step.arguments, [](const auto& argument) { return argument.name == "gradients"; });
    constexpr std::string_view kLists[] = {"parameters", "exp_avgs", "exp_avg_sqs"};
    for (ir::Argument& argument : step.arguments)
      for (std::size_t i = 0; i < std::size(kLists); ++i)
        if (argument.name == kLists[i]) argument.value = list(i);
    step.arguments.push_back({"norms", norms});
    const auto parameters =
        made_.at(made_.add_node(std::move(step), {types.begin(), types.begin() + ptrdiff(count)})).outputs;
    auto outputs = parameters;
    outputs.insert(outputs.end(), made.begin() + ptrdiff(count), made.end() - 1);
    return outputs;
  }

  // --- Gradients are reduced as backward makes them, many at once.

  void reduce_gradients(const ir::Node& node) {
    for (const auto& output : node.outputs) {
      if (!output || !gradients_.contains(*output)) continue;
      const Version& version = versions_[output->index].front();
      const Layout& wanted = placed_.values[output->index];
      if (same_parts(version.layout, wanted, *output)) continue;
      std::string key = concat(static_cast<int>(old_.at(*output).type.dtype));
      for (const Step& step : steps(*output, version.layout, wanted))
        key += concat(' ', static_cast<int>(step.change), ':', step.axis);
      Bucket& bucket = buckets_[key];
      bucket.values.push_back(*output);
      bucket.bytes += ir::bytes_of(old_.at(*output).type);  // of the whole: ranks must agree when it is full
      pending_.insert(*output);
      if (bucket.bytes < options_.bucket_bytes) continue;
      flush(bucket);
      buckets_.erase(key);
    }
  }

  void flush() {
    const auto buckets = std::exchange(buckets_, {});
    for (const auto& [key, bucket] : buckets) flush(bucket);
  }

  void flush(const Bucket& bucket) {
    std::vector<std::vector<Step>> ways;
    std::vector<Version> at;
    for (const ValueId value : bucket.values) {
      at.push_back(versions_[value.index].front());
      ways.push_back(steps(value, at.back().layout, placed_.values[value.index]));
    }
    for (std::size_t i = 0; i < ways.front().size(); ++i) {
      std::vector<Step> now;
      std::vector<ValueId> from;
      std::vector<Layout> before, after;
      for (std::size_t j = 0; j < ways.size(); ++j) {
        now.push_back(ways[j][i]);
        from.push_back(at[j].id);
        before.push_back(at[j].layout);
        after.push_back(at[j].layout);
        after.back().placements[static_cast<std::size_t>(now[j].axis)] = now[j].to;
      }
      if (collective_of(now.front().change)) {
        const auto made = collective(now, from, bucket.values, before, after);
        for (std::size_t j = 0; j < made.size(); ++j) at[j] = {after[j], made[j]};
      } else {
        for (std::size_t j = 0; j < at.size(); ++j)
          at[j] = {after[j], take(now[j], at[j], after[j], bucket.values[j])};
      }
    }
    for (std::size_t j = 0; j < at.size(); ++j) {
      versions_[bucket.values[j].index] = {at[j]};
      pending_.erase(bucket.values[j]);
    }
  }

  // --- The norm over every shard, counted once.

  void add_clip(const ir::Node& node, const PlacedNode& placed) {
    const auto inputs = ir::inputs_of(node);
    std::map<std::vector<bool>, ir::ValueList> by_axes;  // which axes cut the gradient
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      std::vector<bool> cut;
      for (const Placement& placement : placed.in[i].placements)
        cut.push_back(std::holds_alternative<Shard>(placement));
      by_axes[cut].emplace_back(get(inputs[i], placed.in[i]));
    }
    const ValueId norm = *node.outputs[0];
    const TensorType scalar = ir::contiguous(DType::Float64, {});
    ir::ValueList squares;
    for (const auto& [cut, gradients] : by_axes) {
      ValueId sum = add_one("shoal::sum_of_squares", {{"gradients", gradients}}, scalar, norm);
      for (std::size_t axis = 0; axis < cut.size(); ++axis) {
        if (!cut[axis] || mesh_.axes[axis].size == 1) continue;
        sum = add_one("shoal::all_reduce",
                      {{"self", sum}, {"axis", mesh_.axes[axis].name}, {"combine", std::string("sum")}},
                      scalar, norm);
      }
      squares.emplace_back(sum);
    }
    const TensorType type = old_.at(norm).type;
    const auto id = made_.add_node({.op = "shoal::clip_by",
                                    .arguments = {{"squares", squares},
                                                  {"max_norm", *ir::find(node, "max_norm")},
                                                  {"dtype", type.dtype}},
                                    .outputs = {},
                                    .phase = node.phase,
                                    .module = node.module},
                                   {type, type});
    for (std::size_t i = 0; i < 2; ++i)
      versions_[node.outputs[i]->index] = {{sharding::replicated(mesh_), *made_.at(id).outputs[i]}};
  }

  void add_results() {
    gather_parameters();
    for (std::size_t i = 0; i < old_.results.size(); ++i) {
      const auto& [role, name, value] = old_.results[i];
      phase_ = role == Role::Parameter || role == Role::OptimizerState ? Phase::Update : Phase::Backward;
      module_ = "";
      const ValueId made = get(value, placed_.results[i]);
      made_.add_result(role, name, made);
    }
  }

  // Parameters that are updated in parts and kept whole are written over in place, many at once.
  void gather_parameters() {
    struct Many {
      Journey journey;
      std::vector<Parcel> parcels;
      std::vector<ValueId> values;
    };
    std::map<std::pair<DType, int>, Many> by_axis;
    phase_ = Phase::Update;
    module_ = "";
    for (std::size_t i = 0; i < old_.results.size(); ++i) {
      const auto& [role, name, value] = old_.results[i];
      if (role != Role::Parameter) continue;
      const Layout& kept = placed_.results[i];
      const Version& updated = versions_[value.index].front();
      if (same_parts(updated.layout, kept, value)) continue;
      const auto way = steps(value, updated.layout, kept);
      if (way.size() != 1 || way[0].change != Change::AllGather) continue;
      Many& many = by_axis[{old_.at(value).type.dtype, way[0].axis}];
      many.journey = journey(way[0]);
      many.parcels.push_back(parcel(way[0], value, updated.layout, kept));
      many.parcels.back().from = updated.id;
      many.parcels.back().over = source_of(name);
      many.parcels.back().to = made_.at(source_of(name)).type;
      many.values.push_back(value);
      versions_[value.index].push_back({kept, {}});  // its id follows
    }
    for (const auto& [key, many] : by_axis) {
      const auto ids = send(made_, many.journey, many.parcels);
      for (std::size_t i = 0; i < ids.size(); ++i) versions_[many.values[i].index].back().id = ids[i];
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
  const PartitionOptions options_;
  ir::Graph made_;
  std::vector<std::vector<Version>> versions_;  // by value of the whole graph
  std::vector<bool> gathered_;                  // likewise: a gathered parameter or a view of one
  std::vector<ValueId> first_uses_[2];          // of gathered parameters: in forward, in backward
  std::set<ValueId> gradients_;
  std::map<std::string, Bucket> buckets_;  // by dtype, changes and axes
  std::set<ValueId> pending_;              // in buckets
  Phase phase_ = Phase::Forward;           // of what is being added
  std::string module_;
};

}  // namespace

ir::Graph partition(const Placed& placed, int rank, const PartitionOptions& options) {
  return Partitioning(placed, rank, options).run();
}

}  // namespace shoal::rewrite
