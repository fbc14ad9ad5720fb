// SPDX-License-Identifier: Apache-2.0
// Sets of aliases are asked, not slots: a memory may be written over when nobody else looks at it any more.
#include "shoal/program/lifetimes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "shoal/program/lenders.h"
#include "shoal/program/streams.h"

namespace shoal::program {

namespace {

class Lifetimes {
 public:
  Lifetimes(Program& program, const Aliases& aliases) : program_(program), aliases_(aliases) {}

  void add_frees() {
    for (auto& segment : program_.segments)
      for (auto& instruction : segment.instructions) {
        if (!stream_of(instruction).empty())
          under_way_[std::get<Compute>(instruction).outputs.at(0).value()] = touched(instruction);
        order_.push_back(&instruction);
        touched_.push_back(touched(instruction));
        const auto number = static_cast<std::size_t>(&segment - program_.segments.data());
        for (const Slot slot : touched_.back()) segments_of_[slot].insert(number);
      }
    constexpr std::size_t kForever = static_cast<std::size_t>(-1);
    last_use_.assign(program_.types.size(), 0);
    for (std::size_t at = 0; at < order_.size(); ++at)
      for (const Slot slot : touched_[at]) last_use_[slot.index] = at;
    for (const auto& [slot, segments] : segments_of_)
      if (has_no_last(segments)) last_use_[slot.index] = kForever;
    for (const auto& source : program_.sources) last_use_[source.slot.index] = kForever;
    for (const auto& result : program_.results) last_use_[result.slot.index] = kForever;

    std::vector<std::vector<Instruction>> lowered;
    std::size_t at = 0;
    for (auto& segment : program_.segments) {
      auto& with_frees = lowered.emplace_back();
      for (auto& instruction : segment.instructions) {
        auto dead = touched_[at];
        std::ranges::sort(dead);
        dead.erase(std::unique(dead.begin(), dead.end()), dead.end());
        std::erase_if(dead, [&](Slot slot) { return last_use_[slot.index] != at; });
        if (auto* compute = std::get_if<Compute>(&instruction);
            compute != nullptr && segment.phase != ir::Phase::Update)
          lend_memory(*compute, at);
        with_frees.push_back(instruction);
        if (!dead.empty()) with_frees.emplace_back(Free{std::move(dead)});
        ++at;
      }
    }
    for (std::size_t i = 0; i < lowered.size(); ++i)
      program_.segments[i].instructions = std::move(lowered[i]);
  }

 private:
  // Every slot that an instruction reads or writes, outputs included. What a message has is its own until it
  // is waited for.
  std::vector<Slot> touched(const Instruction& instruction) const {
    if (const auto* copy = std::get_if<Copy>(&instruction)) return {copy->from, copy->to};
    if (const auto* wait = std::get_if<Wait>(&instruction)) {
      std::vector<Slot> slots;
      for (const Slot made : wait->slots) {
        const auto& of_message = under_way_.at(made);
        slots.insert(slots.end(), of_message.begin(), of_message.end());
      }
      return slots;
    }
    const auto& compute = std::get<Compute>(instruction);
    auto slots = inputs_of(call_of(compute));
    for (const auto& output : compute.outputs)
      if (output) slots.push_back(*output);
    return slots;
  }

  // Whether nobody looks at a slot after an instruction; of a message, but for the wait for itself, and for what
  // made the slot.
  bool dies_at(Slot slot, std::size_t at) const {
    if (last_use_[slot.index] == at) return true;
    if (last_use_[slot.index] >= order_.size() || stream_of(*order_[at]).empty()) return false;
    const Slot made = std::get<Compute>(*order_[at]).outputs.at(0).value();
    const auto is_among = [&](const std::vector<Slot>& slots) {
      return std::ranges::find(slots, slot) != slots.end();
    };
    for (std::size_t later = at + 1; later <= last_use_[slot.index]; ++later) {
      const auto* wait = std::get_if<Wait>(order_[later]);
      if (wait == nullptr ? is_among(touched_[later]) : std::ranges::any_of(wait->slots, [&](Slot other) {
            return other != made && other != slot && is_among(under_way_.at(other));
          }))
        return false;
    }
    return true;
  }

  // Whether two of the segments may be run in either order: what both look at lives as long as its micro-batch.
  bool has_no_last(const std::set<std::size_t>& segments) const {
    for (const std::size_t a : segments)
      for (const std::size_t b : segments)
        if (are_unordered(program_.segments[a], program_.segments[b])) return true;
    return false;
  }
  bool has_no_last(const std::vector<Slot>& slots) const {
    std::set<std::size_t> segments;
    for (const Slot slot : slots)
      if (const auto found = segments_of_.find(slot); found != segments_of_.end())
        segments.insert(found->second.begin(), found->second.end());
    return has_no_last(segments);
  }

  // Writes over the first lender that dies here with nobody else looking at its memory, now or later.
  void lend_memory(Compute& compute, std::size_t at) const {
    const auto lenders = lenders_of(compute.op);
    if (lenders[0].empty() || compute.outputs.size() != 1 || !compute.outputs[0]) return;
    const auto& type = program_.types.at(compute.outputs[0]->index);
    for (const auto& argument : compute.arguments) {
      const auto* slot = std::get_if<Slot>(&argument.value);
      if (slot == nullptr || std::ranges::find(lenders, argument.name) == lenders.end()) continue;
      if (program_.types.at(slot->index) != type || !dies_at(*slot, at)) continue;
      const auto& members = aliases_.members(*slot);
      const bool alone = aliases_.sources(*slot).empty() && std::ranges::all_of(members, [&](Slot other) {
                           return other == *slot || last_use_[other.index] < at;
                         });
      const bool whole = std::ranges::all_of(members, [&](Slot other) {
        return ir::bytes_of(program_.types[other.index]) <= ir::bytes_of(type);
      });
      if (!alone || !whole || !is_dense(type) || has_no_last(members)) continue;
      compute.over = *slot;
      return;
    }
  }

  // Each element in a place of its own, and no gaps.
  static bool is_dense(const ir::TensorType& type) {
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;
    for (std::size_t dim = 0; dim < type.shape.size(); ++dim)
      if (type.shape[dim] != 1) dims.emplace_back(type.strides[dim], type.shape[dim]);
    std::ranges::sort(dims);
    std::int64_t expected = 1;
    for (const auto& [stride, size] : dims) {
      if (stride != expected) return false;
      expected *= size;
    }
    return true;
  }

  Program& program_;
  const Aliases& aliases_;
  std::vector<const Instruction*> order_;              // of all segments
  std::vector<std::vector<Slot>> touched_;             // by each
  std::map<Slot, std::set<std::size_t>> segments_of_;  // by what they touch
  std::map<Slot, std::vector<Slot>> under_way_;        // by a message, by what it makes
  std::vector<std::size_t> last_use_;                  // by slot; in order_
};

}  // namespace

void add_frees(Program& program, const Aliases& aliases) { Lifetimes(program, aliases).add_frees(); }

}  // namespace shoal::program
