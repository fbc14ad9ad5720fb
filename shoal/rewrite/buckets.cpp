// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/buckets.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/loss_scale.h"
#include "shoal/rewrite/transfer.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Node;
using ir::Phase;
using ir::Role;
using ir::ValueId;

namespace {

// The steps that one gradient takes to where it is wanted: transfers, and parts that are kept of it.
struct Way {
  std::vector<const Node*> steps;
  ValueId end;
  std::int64_t bytes = 0;        // of the whole tensor, as it travels
  std::string key;               // ways that may go together have the same
  std::optional<DType> as = {};  // in what it travels, if it is no type of its own
};

class Filling {
 public:
  Filling(const ir::Graph& old, std::int64_t limit, DType reduce, bool goes_on)
      : old_(old),
        limit_(limit),
        reduce_(reduce),
        goes_on_(goes_on),
        in_(old.values.size()),
        readers_(old.values.size()) {
    made_.form = old.form;
  }

  ir::Graph run() {
    find_readers();
    find_ways();
    for (const auto& [value, name, fingerprint] : old_.sources)
      in_.set(value, made_.add_source(old_.at(value).role, name, old_.at(value).type, fingerprint));
    if (reduce_ == DType::Float16) find_scale();
    Phase phase = Phase::Forward;
    for (const Node& node : old_.nodes) {
      if (node.phase == Phase::Update && phase != Phase::Update) flush();
      phase = node.phase;
      if (const auto way = starts_.find(&node); way != starts_.end())
        fill(ways_[way->second]);
      else if (!taken_.contains(&node))
        add(node);
    }
    flush();
    for (const auto& [role, name, value] : old_.results) made_.add_result(role, name, in_(value));
    return std::move(made_);
  }

 private:
  void find_readers() {
    for (const Node& node : old_.nodes)
      for (const ValueId input : ir::inputs_of(node)) readers_[input.index].push_back(&node);
    for (const Node& node : old_.nodes)  // those of a micro-batch, added to the sums that are results
      if (const auto* each = node.op == "shoal::accumulate" ? ir::find(node, "gradients") : nullptr)
        for (const auto& gradient : std::get<ir::ValueList>(*each)) gradients_.insert(*gradient);
    for (const auto& result : old_.results) {
      leaves_.insert(result.value);
      if (result.role == Role::Gradient) gradients_.insert(result.value);
    }
    for (const auto& source : old_.sources)
      if (old_.at(source.value).role == Role::Gradient) gradients_.insert(source.value);
    for (auto node = old_.nodes.rbegin(); node != old_.nodes.rend(); ++node)  // and what they are the sums of
      if (node->op == "aten::add.Tensor" && gradients_.contains(*node->outputs[0]))
        for (const ValueId summand : ir::inputs_of(*node)) gradients_.insert(summand);
  }

  // A transfer of one tensor, or what is kept of it without one.
  static bool is_step(const Node& node) {
    return (is_transfer(node) && node.outputs.size() == 1) || node.op == "shoal::part" ||
           node.op == "aten::alias" || node.op == "aten::full_like";
  }
  bool has_one_reader(ValueId value) const {
    return readers_[value.index].size() == 1 && !leaves_.contains(value);
  }

  // From a transfer on, as far as nobody else looks at what is on the way.
  void find_ways() {
    for (const Node& node : old_.nodes) {
      if (node.phase == Phase::Forward || taken_.contains(&node) || !is_transfer(node) ||
          node.outputs.size() != 1)
        continue;
      Way way{.steps = {&node}, .end = *node.outputs[0], .bytes = bytes_in(node)[0], .key = {}};
      while (has_one_reader(way.end) && is_step(*readers_[way.end.index].front())) {
        way.steps.push_back(readers_[way.end.index].front());
        way.end = *way.steps.back()->outputs[0];
      }
      const Parcel parcel = parcels_in(old_, node)[0];
      if (!parcel.over && !gradients_.contains(parcel.from) && !gradients_.contains(way.end)) continue;
      if (!parcel.over && parcel.to.dtype == DType::Float32 && reduce_ != DType::Float32) {
        way.as = reduce_;
        way.bytes = way.bytes / shoal::bytes_of(DType::Float32) * shoal::bytes_of(reduce_);
      }
      way.key = key_of(way, parcel);
      ++to_come_[way.key].ways;
      to_come_[way.key].bytes += way.bytes;
      starts_.emplace(&node, ways_.size());
      for (const Node* step : way.steps) taken_.insert(step);
      ways_.push_back(std::move(way));
    }
  }

  // The same on all ranks.
  std::string key_of(const Way& way, const Parcel& parcel) const {
    std::string key = concat(parcel.over ? "updated " : "", static_cast<int>(parcel.to.dtype));
    if (way.steps.front()->stage != 0) key += concat(" stage ", way.steps.front()->stage);
    for (const Node* step : way.steps) {
      if (!is_transfer(*step)) {
        key += " kept";
        continue;
      }
      const Journey journey = journey_in(*step);
      key += concat(' ', name_of(journey.kind), ':', journey.axis);
      if (journey.combine) key += concat(':', name_of(*journey.combine));
    }
    return key;
  }

  // What it reads is not in a bucket any more.
  void wait_for(const Node& node) {
    for (const ValueId input : ir::inputs_of(node))
      if (pending_.contains(input)) flush();
  }
  void add(const Node& node) {
    wait_for(node);
    map(node, ir::copy(old_, node, in_, made_));
  }
  void map(const Node& node, const ir::Outputs& outputs) {
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i]) in_.set(*node.outputs[i], outputs[i]);
  }

  void fill(const Way& way) {
    wait_for(*way.steps.front());
    if (way.as) start(way);
    const bool is_updated = way.key.starts_with("updated");
    ToCome& to_come = to_come_[way.key];
    --to_come.ways;
    to_come.bytes -= way.bytes;
    auto& bucket = buckets_[way.key];
    bucket.ways.push_back(&way);
    bucket.bytes += way.bytes;
    pending_.insert(way.end);
    constexpr std::int64_t kLeast = 1 << 20;
    const std::int64_t limit = goes_on_ ? std::min(limit_, std::max(kLeast, to_come.bytes)) : limit_;
    if (to_come.ways > 0 && (is_updated || bucket.bytes < limit)) return;
    const auto full = std::move(bucket);
    buckets_.erase(way.key);
    empty(full.ways);
  }

  void flush() {
    for (const auto& [key, bucket] : std::exchange(buckets_, {})) empty(bucket.ways);
  }

  void empty(const std::vector<const Way*>& ways) {
    for (std::size_t i = 0; i < ways.front()->steps.size(); ++i) {
      std::vector<const Node*> steps;
      for (const Way* way : ways) steps.push_back(way->steps[i]);
      const auto in = [&](ValueId value) {
        const auto found = i == 0 ? started_.find(value) : started_.end();
        return found == started_.end() ? in_(value) : found->second;
      };
      if (is_transfer(*steps.front())) {
        const auto values = add_joined(old_, steps, in, made_, ways.front()->as);
        for (std::size_t j = 0; j < values.size(); ++j) in_.set(*steps[j]->outputs[0], values[j]);
      } else {
        for (std::size_t j = 0; j < steps.size(); ++j) keep(*steps[j], ways[j]->as);
      }
    }
    for (const Way* way : ways) {
      if (way->as) arrive(*way);
      pending_.erase(way->end);
    }
  }

  // What is kept of it, in what it travels in.
  void keep(const Node& step, std::optional<DType> as) {
    ir::TensorType type = old_.at(*step.outputs[0]).type;
    type.dtype = as.value_or(type.dtype);
    Node node = ir::with_inputs(step, in_);
    node.outputs.clear();
    in_.set(*step.outputs[0], with_role(*made_.at(made_.add_node(std::move(node), {type})).outputs[0]));
  }

  void find_scale() {
    const auto found = std::ranges::find(old_.sources, kLossScale, &ir::Source::name);
    scale_ = found != old_.sources.end() ? in_(found->value)
                                         : made_.add_source(Role::Scalar, std::string(kLossScale),
                                                            ir::contiguous(DType::Float32, {}));
  }
  void start(const Way& way) {
    Writer write(made_, *way.steps.front());
    const ValueId begin = parcels_in(old_, *way.steps.front())[0].from;
    ValueId value = in_(begin);
    if (scale_) value = with_role(write.mul(value, *scale_));
    started_[begin] = with_role(write.converted(value, *way.as));
  }
  void arrive(const Way& way) {
    Writer write(made_, *way.steps.back());
    ValueId value = with_role(write.converted(in_(way.end), DType::Float32));
    if (scale_) value = with_role(write.div(value, *scale_));
    in_.set(way.end, value);
  }
  ValueId with_role(ValueId value) {
    made_.values[value.index].role = Role::Gradient;
    return value;
  }

  struct ToCome {
    int ways = 0;
    std::int64_t bytes = 0;
  };
  struct Bucket {
    std::vector<const Way*> ways;
    std::int64_t bytes = 0;
  };

  const ir::Graph& old_;
  const std::int64_t limit_;
  const DType reduce_;
  const bool goes_on_;
  ir::Graph made_;
  ir::Mapped in_;
  std::vector<std::vector<const Node*>> readers_;  // by value
  std::set<ValueId> leaves_, gradients_;
  std::vector<Way> ways_;
  std::map<const Node*, std::size_t> starts_;  // the first step of each way
  std::set<const Node*> taken_;                // all steps of ways
  std::map<std::string, ToCome> to_come_;      // of ways, by key
  std::map<std::string, Bucket> buckets_;      // likewise
  std::set<ValueId> pending_;                  // ends of ways in buckets
  std::map<ValueId, ValueId> started_;  // of gradients that travel in another type: there, in the new graph
  std::optional<ValueId> scale_;        // of float16, in the new graph
};

}  // namespace

ir::Graph buckets(const ir::Graph& local, std::int64_t bytes, DType reduce, bool goes_on) {
  return Filling(local, bytes, reduce, goes_on).run();
}

}  // namespace shoal::rewrite
