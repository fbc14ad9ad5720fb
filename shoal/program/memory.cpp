// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/memory.h"

#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/program/aliases.h"
#include "shoal/program/streams.h"
#include "shoal/program/workspace.h"

namespace shoal::program {

std::string_view name_of(MemoryKind kind) {
  static constexpr std::array<std::string_view, kMemoryKinds> kNames = {
      "parameters", "buffers",   "optimizer state", "gradients",
      "inputs",     "constants", "activations",     "workspace of kernels"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::int64_t MemoryByKind::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

static MemoryKind kind_of(ir::Role role) {
  switch (role) {
    case ir::Role::Parameter: return MemoryKind::Parameters;
    case ir::Role::Buffer: return MemoryKind::Buffers;
    case ir::Role::OptimizerState: return MemoryKind::OptimizerState;
    case ir::Role::Input:
    case ir::Role::Scalar: return MemoryKind::Inputs;
    case ir::Role::Constant: return MemoryKind::Constants;
    case ir::Role::Gradient: return MemoryKind::Gradients;
    default: return MemoryKind::Activations;
  }
}

namespace {

// Memory that was taken at once, and is given back when the last slot that lies in it is freed.
struct Block {
  std::int64_t bytes = 0;
  MemoryKind kind = MemoryKind::Activations;
  int slots = 0;
};

class Walk {
 public:
  Walk(const Program& program, int threads)
      : program_(program), threads_(threads), block_of_(program.types.size()) {}

  Memory run() {
    // A gradient may be a view of what several of them were packed into: all of that lives as long.
    for (const Source& source : program_.sources)
      take(source.slot, kind_of(source.role), !source.is_offloaded);
    memory_.sources = memory_.peak = now_;
    memory_.instruction = std::numeric_limits<std::size_t>::max();  // none takes more than that yet
    mark_gradients();
    for (std::size_t segment = 0; segment < program_.segments.size(); ++segment) {
      const auto& list = program_.segments[segment].instructions;
      auto& uses = memory_.uses.emplace_back();
      auto& activations = memory_.activations.emplace_back();
      for (std::size_t at = 0; at < list.size(); ++at) {
        if (const auto* freed = std::get_if<Free>(&list[at]))
          for (const Slot slot : freed->slots) give(slot);
        else if (const auto* compute = std::get_if<Compute>(&list[at]))
          uses.push_back({.peak = run(*compute, segment, at), .after = 0});
        else
          uses.push_back({.peak = now_.total(), .after = 0});
        if (const auto* wait = std::get_if<Wait>(&list[at])) end_messages(*wait);
        const std::int64_t live = now_[MemoryKind::Activations];
        if (activations.size() < uses.size()) activations.push_back({.peak = live, .after = live});
        if (uses.empty()) continue;
        uses.back().after = now_.total();
        activations.back().after = live;
      }
    }
    memory_.end = now_;
    return std::move(memory_);
  }

 private:
  // The peak while it runs.
  std::int64_t run(const Compute& compute, std::size_t segment, std::size_t at) {
    const Call call = call_of(compute);
    const bool shares = shares_memory(call, program_.types);
    for (std::size_t i = 0; i < compute.outputs.size(); ++i) {
      if (!compute.outputs[i]) continue;
      const Slot slot = *compute.outputs[i];
      if (block_of_[slot.index]) continue;  // written in place
      if (compute.over && i == 0)
        share(slot, *compute.over);
      else if (shares)
        share(slot, inputs_of(call).front());
      else
        take(slot, is_gradient_.at(slot.index) ? MemoryKind::Gradients : MemoryKind::Activations,
             compute.op != "shoal::to_file");
    }
    const std::int64_t inside = workspace_bytes(call, program_.types, threads_);
    now_[MemoryKind::Workspace] += inside;
    const std::int64_t peak = now_.total();
    if (peak > memory_.peak.total()) {
      memory_.peak = now_;
      memory_.segment = segment;
      memory_.instruction = at;
    }
    // What a message has inside it has until it is waited for.
    if (!stream_of(compute).empty() && !compute.outputs.empty() && compute.outputs[0])
      of_messages_[compute.outputs[0]->index] = inside;
    else
      now_[MemoryKind::Workspace] -= inside;
    return peak;
  }

  void end_messages(const Wait& wait) {
    for (const Slot slot : wait.slots)
      if (const auto message = of_messages_.find(slot.index); message != of_messages_.end()) {
        now_[MemoryKind::Workspace] -= message->second;
        of_messages_.erase(message);
      }
  }

  // What lies in a file takes no memory.
  void take(Slot slot, MemoryKind kind, bool is_in_memory) {
    block_of_[slot.index] = blocks_.size();
    blocks_.push_back({is_in_memory ? storage_bytes(program_.types.at(slot.index)) : 0, kind, 1});
    now_[kind] += blocks_.back().bytes;
  }
  void share(Slot slot, Slot with) {
    SHOAL_CHECK(block_of_[with.index].has_value(), Internal, "memory: %", slot.index,
                " shares the memory of %", with.index, ", which has none");
    block_of_[slot.index] = block_of_[with.index];
    ++blocks_[*block_of_[with.index]].slots;
  }
  void give(Slot slot) {
    Block& block = blocks_[block_of_[slot.index].value()];
    if (--block.slots == 0) now_[block.kind] -= block.bytes;
    block_of_[slot.index].reset();
  }

  // The slots that gradients, or what they are views of, are made in.
  void mark_gradients() {
    is_gradient_.resize(program_.types.size());
    for (const Result& result : program_.results)
      if (result.role == ir::Role::Gradient) is_gradient_[result.slot.index] = true;
    for (std::size_t segment = program_.segments.size(); segment-- > 0;)
      if (program_.segments[segment].phase != ir::Phase::Update)
        mark_gradients(program_.segments[segment].instructions);
  }
  void mark_gradients(const std::vector<Instruction>& list) {
    for (std::size_t at = list.size(); at-- > 0;) {
      const auto* compute = std::get_if<Compute>(&list[at]);
      if (compute == nullptr) continue;
      const Call call = call_of(*compute);
      const bool shares = shares_memory(call, program_.types);
      if (!shares && !compute->over) continue;
      for (const auto& output : compute->outputs)
        if (output && is_gradient_[output->index])
          is_gradient_[(compute->over ? *compute->over : inputs_of(call).front()).index] = true;
    }
  }

  const Program& program_;
  int threads_;
  Memory memory_;
  MemoryByKind now_;
  std::vector<Block> blocks_;
  std::vector<std::optional<std::size_t>> block_of_;   // by slot
  std::vector<bool> is_gradient_;                      // by slot
  std::map<std::uint32_t, std::int64_t> of_messages_;  // under way, by their output: bytes inside
};

}  // namespace

Memory memory_of(const Program& program, int threads) { return Walk(program, threads).run(); }

std::string place_of_peak(const Program& program, const Memory& memory) {
  if (memory.segment >= program.segments.size()) return "what is there before it";
  const auto& list = program.segments[memory.segment].instructions;
  if (memory.instruction >= list.size()) return "what is there before it";
  const auto* compute = std::get_if<Compute>(&list[memory.instruction]);
  if (compute == nullptr) return "a copy";
  return compute->module.empty() ? compute->op : concat(compute->op, " in module \"", compute->module, '"');
}

}  // namespace shoal::program
