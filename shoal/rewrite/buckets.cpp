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
#include "shoal/rewrite/transfer.h"

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
  std::int64_t bytes = 0;  // of the whole tensor
  std::string key;         // ways that may go together have the same
};

class Filling {
 public:
  Filling(const ir::Graph& old, std::int64_t limit)
      : old_(old), limit_(limit), in_(old.values.size()), readers_(old.values.size()) {
    made_.form = old.form;
  }

  ir::Graph run() {
    find_readers();
    find_ways();
    for (const auto& [value, name, fingerprint] : old_.sources)
      in_.set(value, made_.add_source(old_.at(value).role, name, old_.at(value).type, fingerprint));
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
    for (const auto& result : old_.results) {
      leaves_.insert(result.value);
      if (result.role == Role::Gradient) gradients_.insert(result.value);
    }
    for (const auto& source : old_.sources)
      if (old_.at(source.value).role == Role::Gradient) gradients_.insert(source.value);
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
      way.key = key_of(way, parcel);
      ++to_come_[way.key];
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
    const bool is_updated = way.key.starts_with("updated"), is_last = --to_come_[way.key] == 0;
    auto& bucket = buckets_[way.key];
    bucket.ways.push_back(&way);
    bucket.bytes += way.bytes;
    pending_.insert(way.end);
    if (!is_last && (is_updated || bucket.bytes < limit_)) return;
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
      if (is_transfer(*steps.front())) {
        const auto values = add_joined(old_, steps, in_, made_);
        for (std::size_t j = 0; j < values.size(); ++j) in_.set(*steps[j]->outputs[0], values[j]);
      } else {
        for (const Node* step : steps) map(*step, ir::copy(old_, *step, in_, made_));
      }
    }
    for (const Way* way : ways) pending_.erase(way->end);
  }

  struct Bucket {
    std::vector<const Way*> ways;
    std::int64_t bytes = 0;
  };

  const ir::Graph& old_;
  const std::int64_t limit_;
  ir::Graph made_;
  ir::Mapped in_;
  std::vector<std::vector<const Node*>> readers_;  // by value
  std::set<ValueId> leaves_, gradients_;
  std::vector<Way> ways_;
  std::map<const Node*, std::size_t> starts_;  // the first step of each way
  std::set<const Node*> taken_;                // all steps of ways
  std::map<std::string, int> to_come_;         // ways, by key
  std::map<std::string, Bucket> buckets_;      // likewise
  std::set<ValueId> pending_;                  // ends of ways in buckets
};

}  // namespace

ir::Graph buckets(const ir::Graph& local, std::int64_t bytes) { return Filling(local, bytes).run(); }

}  // namespace shoal::rewrite
