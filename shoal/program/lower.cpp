// SPDX-License-Identifier: Apache-2.0
// Graph to Program: each value gets a slot, each slot its last use, and what dies early lends its memory.
//
//   graph                                        program
//   %2 = mm(%x, %w)                              %2 = mm(%x, %w)
//   %3 = relu(%2)                                %3 = relu(%2) over %2
//                                                free %2
//   %5, = sgd([%w], [%g])          update        %w, = sgd([%w], [%g])
//   return parameter "w" %5, buffer "b" %4       copy %4 -> %b
//
// A part of a source that all parts are gathered into afterwards is changed where it lies:
//
//   %2 = part(%w)                                %2 = part(%w)
//   %3, = sgd([%2], [%g])          update        %2, = sgd([%2], [%g])
//   %4 = all_gather_into([%w], %3)               %w = all_gather_into([%w], %2)
//   return parameter "w" %4
//
// Views share memory with what they are taken of, so two questions are asked of sets of aliases, not of
// values: may an input be written over (nobody else looks at that memory later), and must a value be cloned
// before the update changes the source under it.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/own_ops.h"
#include "shoal/program/aliases.h"
#include "shoal/program/lenders.h"
#include "shoal/program/program.h"
#include "shoal/program/streams.h"

namespace shoal::program {

using ir::Node;
using ir::ValueId;

// Of an op that writes some lists of its inputs in place; else null.
static const ir::OwnOp* in_place_op(std::string_view op) {
  const ir::OwnOp* own = ir::find_own_op(op);
  return own != nullptr && !own->writes[0].empty() ? own : nullptr;
}

static bool is_in_place_list(const ir::OwnOp* in_place, std::string_view argument) {
  return in_place != nullptr && std::ranges::find(in_place->writes, argument) != in_place->writes.end();
}

namespace {

class Lowering {
 public:
  Lowering(const ir::Graph& graph, Buffers buffers) : graph_(graph), aliases_(graph), buffers_(buffers) {}

  Program run(std::int64_t under_way_bytes) {
    for (const auto& value : graph_.values) program_.types.push_back(value.type);
    for (const auto& source : graph_.sources)
      program_.sources.push_back({source.value, graph_.at(source.value).role, source.name});
    program_.segments = {
        {ir::Phase::Forward, 0, {}}, {ir::Phase::Backward, 0, {}}, {ir::Phase::Update, 0, {}}};
    find_written();
    bool is_forward = true;  // up to the first node of backward
    for (const auto& node : graph_.nodes) {
      if (commits(node)) {
        add_update(node);
        committed_.insert(ir::NodeId{static_cast<std::uint32_t>(&node - graph_.nodes.data())});
      } else {
        is_forward &= node.phase == ir::Phase::Forward;
        program_.segments[is_forward ? 0 : 1].instructions.emplace_back(compute_of(node));
      }
    }
    add_results();
    update().insert(update().begin(), clones_.begin(), clones_.end());
    add_waits(program_, buffers_ == Buffers::InUpdate ? Crossing::Between : Crossing::None, under_way_bytes);
    add_frees();
    forget_unfilled();
    return std::move(program_);
  }

 private:
  std::vector<Instruction>& forward() { return program_.segments[0].instructions; }
  std::vector<Instruction>& update() { return program_.segments[2].instructions; }

  static Compute compute_of(const Node& node) {
    return {node.op, node.arguments, node.outputs, std::nullopt, node.module};
  }

  // Whether a node belongs to the update segment: it changes a source or a table's rows, or it reads what such a
  // node made. An update node that only looks at gradients (their norm) runs before the step is committed.
  bool commits(const Node& node) const {
    if (node.phase != ir::Phase::Update) return false;
    const ir::OwnOp* own = ir::find_own_op(node.op);
    if (own != nullptr && own->kind == ir::OwnOp::Kind::Rows) return true;
    return in_place_op(node.op) != nullptr || std::ranges::any_of(inputs_of(node), [&](ValueId input) {
             const auto& producer = graph_.at(input).producer;
             return producer.has_value() && committed_.contains(*producer);
           });
  }

  // The source that becomes what the result is. A sum of gradients is one where it is added to; what an update
  // makes of it, reduced over ranks say, is another value of that name.
  const ir::Source* source_of(const ir::Result& result) const {
    const auto& producer = graph_.at(result.value).producer;
    if (result.role == ir::Role::Gradient && !(producer && in_place_op(graph_.at(*producer).op) != nullptr))
      return nullptr;
    for (const auto& source : graph_.sources)
      if (source.name == result.name && graph_.at(source.value).role == result.role) return &source;
    return nullptr;
  }

  // The sources that the update segment will change.
  void find_written() {
    for (const auto& node : graph_.nodes)
      for (const ValueId input : inputs_of(node)) ++num_readers_[input];
    for (const auto& result : graph_.results) {
      ++num_readers_[result.value];
      const auto* source = source_of(result);
      if (source == nullptr || source->value == result.value) continue;
      written_.insert(source->value);
      if (const auto& producer = graph_.at(result.value).producer;
          producer && is_in_place_list(in_place_op(graph_.at(*producer).op), "wholes"))
        written_over_.insert(source->value);
    }
  }

  bool lies_in_written(ValueId value) const {
    return std::ranges::any_of(aliases_.sources(value),
                               [&](ValueId source) { return written_.contains(source); });
  }

  ValueId cloned(ValueId value, std::vector<Instruction>& where) {
    const ValueId copy{static_cast<std::uint32_t>(program_.types.size())};
    program_.types.push_back(program_.types.at(value.index));
    std::string module;
    if (const auto& producer = graph_.at(value).producer; producer.has_value())
      module = graph_.at(*producer).module;
    where.emplace_back(Compute{.op = "aten::clone",
                               .arguments = {{"self", value}, {"memory_format", {}}},
                               .outputs = {copy},
                               .over = {},
                               .module = std::move(module)});
    return copy;
  }

  // Where the update segment reads a value: its slot, or a clone made before anything is written.
  ValueId kept(ValueId value) {
    if (const auto moved = slot_of_.find(value); moved != slot_of_.end()) return moved->second;
    if (lies_in_written(value))
      slot_of_[value] = cloned(value, clones_);
    else
      slot_of_[value] = value;
    return slot_of_[value];
  }

  // Whether a part may be changed where it lies: in a source that is written over whole in the end, or in memory of
  // its own. What else of the update reads that memory reads a clone (kept).
  bool changes_in_place(ValueId value) const {
    const Node& node = graph_.at(*graph_.at(value).producer);
    if (node.op != "shoal::part" || num_readers_.at(value) != 1) return false;
    const ValueId source = inputs_of(node).front();
    if (!shares_memory(program::call_of(node), program_.types)) return true;
    return written_over_.contains(source);
  }

  // The slot that an update op changes: the source's own, or a copy if what it changes was made in this step.
  ValueId changed(ValueId value) {
    if (!graph_.at(value).producer) {
      SHOAL_CHECK(changed_.insert(value).second, Internal, "lower: the update changes %", value.index,
                  " twice");
      return value;
    }
    if (const auto moved = slot_of_.find(value); moved != slot_of_.end() && moved->second != value)
      return moved->second;
    return changes_in_place(value) ? value : cloned(value, update());
  }

  void add_update(const Node& node) {
    const ir::OwnOp* in_place = in_place_op(node.op);
    Compute compute = compute_of(node);
    std::map<std::string_view, std::vector<ValueId>> lists;
    for (auto& argument : compute.arguments) {
      const bool changes = is_in_place_list(in_place, argument.name);
      if (auto* value = std::get_if<ValueId>(&argument.value)) *value = kept(*value);
      if (auto* list = std::get_if<ir::ValueList>(&argument.value))
        for (auto& value : *list) {
          if (!value) continue;
          value = changes ? changed(*value) : kept(*value);
          if (changes) lists[argument.name].push_back(*value);
        }
    }
    if (in_place != nullptr) {
      std::vector<std::optional<Slot>> outputs;
      for (const auto& name : in_place->writes)
        if (!name.empty()) outputs.insert(outputs.end(), lists[name].begin(), lists[name].end());
      SHOAL_CHECK(outputs.size() <= node.outputs.size(), Internal, "lower: ", node.op, " changes ",
                  outputs.size(), " tensors and has ", node.outputs.size(), " outputs");
      outputs.insert(outputs.end(), node.outputs.begin() + static_cast<std::ptrdiff_t>(outputs.size()),
                     node.outputs.end());
      for (std::size_t index = 0; index < outputs.size(); ++index)
        if (node.outputs[index]) slot_of_[*node.outputs[index]] = *outputs[index];
      compute.outputs = std::move(outputs);
    } else {
      for (const auto& output : node.outputs)
        if (output) slot_of_[*output] = *output;
    }
    update().emplace_back(std::move(compute));
  }

  void add_results() {
    std::vector<Instruction> copies, after_forward;
    for (const auto& result : graph_.results) {
      const auto* source = source_of(result);
      if (source != nullptr) {
        if (source->value != result.value && changes_after_forward(result)) {
          check_unread(*source);
          // What is another buffer's may be written before it is copied from.
          const bool is_made = graph_.at(result.value).producer && !lies_in_written(result.value);
          after_forward.emplace_back(
              Copy{is_made ? result.value : cloned(result.value, forward()), source->value});
        } else if (source->value != result.value) {
          if (buffers_ == Buffers::AfterForward && result.role == ir::Role::Buffer) check_unused(*source);
          const ValueId from = kept(result.value);
          if (from != source->value) copies.emplace_back(Copy{from, source->value});
        }
        program_.results.push_back({result.role, result.name, source->value});
      } else {
        program_.results.push_back({result.role, result.name, kept(result.value)});
      }
    }
    forward().insert(forward().end(), after_forward.begin(), after_forward.end());
    update().insert(update().end(), copies.begin(), copies.end());
  }

  bool changes_after_forward(const ir::Result& result) const {
    if (buffers_ != Buffers::AfterForward || result.role != ir::Role::Buffer) return false;
    const ir::Result* from = &result;
    for (std::size_t i = 0; i < graph_.results.size() && from != nullptr; ++i) {
      if (const auto& producer = graph_.at(from->value).producer; producer.has_value())
        return graph_.at(*producer).phase == ir::Phase::Forward;
      from = change_of(from->value);  // it takes on what another buffer was: before that one changes
    }
    return true;
  }
  const ir::Result* change_of(ValueId source) const {
    for (const auto& result : graph_.results)
      if (const auto* of = source_of(result); of != nullptr && of->value == source && result.value != source)
        return &result;
    return nullptr;
  }
  // A later stage sends it with its gradients: by then the next forward has run here.
  void check_unused(const ir::Source& buffer) const {
    for (const auto& node : graph_.nodes)
      for (const ValueId input : inputs_of(node))
        SHOAL_CHECK(node.phase == ir::Phase::Update || !aliases_.sources(input).contains(buffer.value),
                    InvalidInput, "pipeline: a later stage changes buffer ", buffer.name, ", and ", node.op,
                    " in module ", node.module,
                    " of this one reads it: the next micro-batch would see what it was. Remedy: a cut that "
                    "leaves both in one stage (the plan's lines 'stage')");
  }
  void check_unread(const ir::Source& buffer) const {
    for (const auto& result : graph_.results)
      SHOAL_CHECK(result.role == ir::Role::Buffer || !aliases_.sources(result.value).contains(buffer.value),
                  InvalidInput, "pipeline: forward changes buffer ", buffer.name, ", and ",
                  ir::name_of(result.role), " \"", result.name, "\" is what it was; make it a clone() of it");
    for (const auto& node : graph_.nodes) {
      if (node.phase == ir::Phase::Forward) continue;
      for (const ValueId input : inputs_of(node))
        SHOAL_CHECK(!aliases_.sources(input).contains(buffer.value), InvalidInput,
                    "pipeline: forward changes buffer ", buffer.name, ", and ", node.op,
                    " of backward in module ", node.module,
                    " reads what it was; keep a clone() of it in forward");
    }
  }

  // Values that share a source's slot leave theirs empty; a program says nothing about those.
  void forget_unfilled() {
    std::vector<bool> filled(program_.types.size());
    for (const auto& source : program_.sources) filled[source.slot.index] = true;
    for (const auto& segment : program_.segments)
      for (const auto& instruction : segment.instructions)
        if (const auto* compute = std::get_if<Compute>(&instruction))
          for (const auto& output : compute->outputs)
            if (output) filled[output->index] = true;
    for (std::size_t slot = 0; slot < filled.size(); ++slot)
      if (!filled[slot]) program_.types[slot] = {};
    while (!filled.empty() && !filled.back()) filled.pop_back();
    program_.types.resize(filled.size());
  }

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

  void add_frees() {
    for (auto& segment : program_.segments)
      for (auto& instruction : segment.instructions) {
        if (!stream_of(instruction).empty())
          under_way_[std::get<Compute>(instruction).outputs.at(0).value()] = touched(instruction);
        order_.push_back(&instruction);
        touched_.push_back(touched(instruction));
      }
    constexpr std::size_t kForever = static_cast<std::size_t>(-1);
    last_use_.assign(program_.types.size(), 0);
    for (std::size_t at = 0; at < order_.size(); ++at)
      for (const Slot slot : touched_[at]) last_use_[slot.index] = at;
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

  // Writes over the first lender that dies here with nobody else looking at its memory, now or later.
  void lend_memory(Compute& compute, std::size_t at) const {
    const auto lenders = lenders_of(compute.op);
    if (lenders[0].empty() || compute.outputs.size() != 1 || !compute.outputs[0]) return;
    const auto& type = program_.types.at(compute.outputs[0]->index);
    for (const auto& argument : compute.arguments) {
      const auto* slot = std::get_if<ValueId>(&argument.value);
      if (slot == nullptr || std::ranges::find(lenders, argument.name) == lenders.end()) continue;
      if (program_.types.at(slot->index) != type || !dies_at(*slot, at)) continue;
      const auto& members = aliases_.members(*slot);
      const bool alone = aliases_.sources(*slot).empty() && std::ranges::all_of(members, [&](ValueId other) {
                           return other == *slot || last_use_[other.index] < at;
                         });
      const bool whole = std::ranges::all_of(members, [&](ValueId other) {
        return ir::bytes_of(program_.types[other.index]) <= ir::bytes_of(type);
      });
      if (!alone || !whole || !is_dense(type)) continue;
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

  const ir::Graph& graph_;
  Aliases aliases_;
  const Buffers buffers_;
  Program program_;
  std::set<ir::NodeId> committed_;      // nodes of the update segment
  std::set<ValueId> written_;           // sources that the update changes
  std::set<ValueId> written_over_;      // … whole, with what ranks have made of their parts
  std::set<ValueId> changed_;           // … and that an update op has changed by now
  std::map<ValueId, int> num_readers_;  // nodes, and results
  std::map<ValueId, ValueId> slot_of_;  // where the update segment finds a value
  std::vector<Instruction> clones_;     // run before anything is written
  // Of the program with its waits.
  std::vector<const Instruction*> order_;        // of all segments
  std::vector<std::vector<Slot>> touched_;       // by each
  std::map<Slot, std::vector<Slot>> under_way_;  // by a message, by what it makes
  std::vector<std::size_t> last_use_;            // by slot; in order_
};

}  // namespace

Program lower(const ir::Graph& graph, Buffers buffers, std::int64_t under_way_bytes) {
  return Lowering(graph, buffers).run(under_way_bytes);
}

}  // namespace shoal::program
