// SPDX-License-Identifier: Apache-2.0
// Graph to Program: each value gets a slot; waits (streams.h) and frees (lifetimes.h) are put in.
//
//   graph                                        program
//   %2 = mm(%x, %w)                              %2 = mm(%x, %w)
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
// Views share memory with what they are taken of, so sets of aliases are asked, not values, whether a value must
// be cloned before the update changes the source under it.
//
// Above 400 lines: one walk over a graph, whose steps share what they know of its sources.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/own_ops.h"
#include "shoal/program/aliases.h"
#include "shoal/program/lifetimes.h"
#include "shoal/program/program.h"
#include "shoal/program/streams.h"
#include "shoal/program/weights.h"

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
  Lowering(const ir::Graph& graph, Buffers buffers, const std::vector<int>& stages, Backward backward)
      : graph_(graph),
        aliases_(graph),
        buffers_(buffers),
        stages_(stages.begin(), stages.end()),
        first_stage_(stages.front()),
        is_in_two_parts_(backward == Backward::InTwoParts) {
    for (const int stage : stages) {
      for (const auto phase : {ir::Phase::Forward, ir::Phase::Backward, ir::Phase::Update})
        segment(phase, stage);
      if (is_in_two_parts_) segment(ir::Phase::Backward, stage, true);
    }
  }

  Program run(std::int64_t under_way_bytes) {
    for (const auto& value : graph_.values) program_.types.push_back(value.type);
    for (const auto& source : graph_.sources)
      program_.sources.push_back({source.value, graph_.at(source.value).role, source.name});
    find_written();
    bool is_forward = true;  // up to the first node of backward
    std::vector<const Node*> backward;
    for (const auto& node : graph_.nodes) {
      if (commits(node)) {
        add_update(node);
        committed_.insert(ir::NodeId{static_cast<std::uint32_t>(&node - graph_.nodes.data())});
      } else {
        is_forward &= node.phase == ir::Phase::Forward;
        if (is_forward)
          forward(node.stage).emplace_back(compute_of(node));
        else
          backward.push_back(&node);
      }
    }
    add_backward(backward);
    add_results();
    update().insert(update().begin(), clones_.begin(), clones_.end());
    for (auto& [order, each] : segments_) program_.segments.push_back(std::move(each));
    check_order();
    add_waits(program_, buffers_ == Buffers::InUpdate ? Crossing::Between : Crossing::None, under_way_bytes);
    add_frees(program_, aliases_);
    forget_unfilled();
    return std::move(program_);
  }

 private:
  std::vector<Instruction>& segment(ir::Phase phase, int stage, bool is_weights = false) {
    Segment& found = segments_[{phase, phase == ir::Phase::Forward ? stage : -stage, is_weights}];
    found.phase = phase;
    found.stage = stage;
    found.is_weights = is_weights;
    return found.instructions;
  }
  std::vector<Instruction>& forward(int stage) { return segment(ir::Phase::Forward, stage); }
  // The last one to run.
  std::vector<Instruction>& update() { return segment(ir::Phase::Update, first_stage_); }

  void add_backward(const std::vector<const Node*>& nodes) {
    std::vector<bool> is_weights(nodes.size());
    if (is_in_two_parts_) is_weights = find_weights_alone(graph_, nodes, stages_);
    for (std::size_t at = 0; at < nodes.size(); ++at)
      segment(ir::Phase::Backward, nodes[at]->stage, is_weights[at]).emplace_back(compute_of(*nodes[at]));
  }

  // Nothing is read before the segment that makes it.
  void check_order() const {
    std::vector<bool> is_filled(program_.types.size());
    for (const auto& source : program_.sources) is_filled[source.slot.index] = true;
    const auto check = [&](const Segment& each, std::string_view op, Slot slot) {
      SHOAL_CHECK(is_filled[slot.index], Internal, "lower: ", op, " of ", ir::name_of(each.phase),
                  " of stage ", each.stage, " reads %", slot.index, ", which a later segment makes");
    };
    for (const Segment& each : program_.segments)
      for (const auto& instruction : each.instructions) {
        if (const auto* copy = std::get_if<Copy>(&instruction)) check(each, "copy", copy->from);
        const auto* compute = std::get_if<Compute>(&instruction);
        if (compute == nullptr) continue;
        for (const Slot slot : inputs_of(call_of(*compute))) check(each, compute->op, slot);
        for (const auto& output : compute->outputs)
          if (output) is_filled[output->index] = true;
      }
  }

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
    segment(ir::Phase::Update, node.stage).emplace_back(std::move(compute));
  }

  void add_results() {
    std::vector<Instruction> copies;
    std::map<int, std::vector<Instruction>> after_forward;  // by stage
    for (const auto& result : graph_.results) {
      const auto* source = source_of(result);
      if (source != nullptr) {
        const auto stage = source->value != result.value ? stage_of_change(result, *source) : std::nullopt;
        if (stage) {
          check_unread(*source);
          // What is another buffer's may be written before it is copied from.
          const bool is_made = graph_.at(result.value).producer && !lies_in_written(result.value);
          after_forward[*stage].emplace_back(
              Copy{is_made ? result.value : cloned(result.value, forward(*stage)), source->value});
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
    for (auto& [stage, list] : after_forward) {
      auto& its = forward(stage);
      its.insert(its.end(), list.begin(), list.end());
    }
    update().insert(update().end(), copies.begin(), copies.end());
  }

  // The stage at the end of whose forward the buffer changes; nothing where it is made later. The next micro-batch
  // may be in any stage by then: one stage reads it, not before that which makes what it becomes.
  std::optional<int> stage_of_change(const ir::Result& result, const ir::Source& source) const {
    if (buffers_ != Buffers::AfterForward || result.role != ir::Role::Buffer) return std::nullopt;
    int stage = first_stage_;
    const ir::Result* from = &result;
    for (std::size_t i = 0; i < graph_.results.size() && from != nullptr; ++i) {
      if (const auto& producer = graph_.at(from->value).producer; producer.has_value()) {
        if (graph_.at(*producer).phase != ir::Phase::Forward) return std::nullopt;
        stage = graph_.at(*producer).stage;
        break;
      }
      from = change_of(from->value);  // it takes on what another buffer was: before that one changes
    }
    const auto together = linked_to(source.value);
    const Node* reader = nullptr;
    for (const auto& node : graph_.nodes)
      for (const ValueId input : inputs_of(node)) {
        if (node.phase != ir::Phase::Forward || !meets(together, aliases_.sources(input))) continue;
        SHOAL_CHECK(
            node.stage >= stage && (reader == nullptr || reader->stage == node.stage), InvalidInput,
            "pipeline: stage ", stage, " changes buffer ", source.name, ", and ", node.op, " in module ",
            node.module, " reads it in stage ", node.stage,
            reader == nullptr ? concat("") : concat(", as stage ", reader->stage, " does"),
            " of the same rank, where another micro-batch runs between the two. Remedy: cuts that leave "
            "both in one stage (the plan's lines 'stage'), or a schedule with one stage a rank (1f1b)");
        reader = &node;
      }
    return reader == nullptr ? stage : reader->stage;
  }
  // Buffers that take on what others were change together.
  std::set<ValueId> linked_to(ValueId source) const {
    std::set<ValueId> all = {source};
    for (std::size_t before = 0; before != all.size();) {
      before = all.size();
      for (const auto& result : graph_.results) {
        const auto* of = result.role == ir::Role::Buffer ? source_of(result) : nullptr;
        if (of == nullptr || graph_.at(result.value).producer) continue;
        if (all.contains(of->value) || all.contains(result.value)) all.insert({of->value, result.value});
      }
    }
    return all;
  }
  static bool meets(const std::set<ValueId>& a, const std::set<ValueId>& b) {
    return std::ranges::any_of(b, [&](ValueId value) { return a.contains(value); });
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

  const ir::Graph& graph_;
  Aliases aliases_;
  const Buffers buffers_;
  const std::set<int> stages_;  // this rank's
  const int first_stage_;
  const bool is_in_two_parts_;
  std::map<std::tuple<ir::Phase, int, bool>, Segment> segments_;  // in an order in which they can run
  Program program_;
  std::set<ir::NodeId> committed_;      // nodes of the update segment
  std::set<ValueId> written_;           // sources that the update changes
  std::set<ValueId> written_over_;      // … whole, with what ranks have made of their parts
  std::set<ValueId> changed_;           // … and that an update op has changed by now
  std::map<ValueId, int> num_readers_;  // nodes, and results
  std::map<ValueId, ValueId> slot_of_;  // where the update segment finds a value
  std::vector<Instruction> clones_;     // run before anything is written
};

}  // namespace

Program lower(const ir::Graph& graph, Buffers buffers, std::int64_t under_way_bytes,
              const std::vector<int>& stages, Backward backward) {
  return Lowering(graph, buffers, stages, backward).run(under_way_bytes);
}

}  // namespace shoal::program
