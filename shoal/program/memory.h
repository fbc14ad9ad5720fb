// SPDX-License-Identifier: Apache-2.0
// What a program has in memory: a walk along its instructions with what each makes, what its kernel takes
// inside (workspace.h) and what is free after it; what is offloaded to a file is no memory. It says what c10's
// allocator will say, and is held against that instruction by instruction (runtime/measure.h).
//
//   before   %3 = aten::mm(%1, %2)        while it runs                after
//   ───────  ───────────────────────      ───────────────────────      ───────
//   %1 %2                                 %1 %2 %3 + workspace         %3        free %1 %2
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/program/program.h"

namespace shoal::program {

enum class MemoryKind {
  Parameters,
  Buffers,
  OptimizerState,
  Gradients,
  Inputs,  // the batch, and numbers such as the learning rate
  Constants,
  Activations,  // all else that is made in a step: parameters that are gathered for use are among it
  Workspace,    // what a kernel takes and gives back
};
inline constexpr std::size_t kMemoryKinds = 8;
std::string_view name_of(MemoryKind kind);  // "optimizer state"

struct MemoryByKind {
  std::array<std::int64_t, kMemoryKinds> bytes = {};
  friend bool operator==(const MemoryByKind&, const MemoryByKind&) = default;

  std::int64_t& operator[](MemoryKind kind) { return bytes[static_cast<std::size_t>(kind)]; }
  std::int64_t operator[](MemoryKind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
  std::int64_t total() const;
};

// Of one instruction: the most while it runs, and what is left when those after it have freed what they free.
struct MemoryUse {
  std::int64_t peak = 0;
  std::int64_t after = 0;
  friend bool operator==(const MemoryUse&, const MemoryUse&) = default;
};

struct Memory {
  MemoryByKind sources;                             // what is there before the first instruction
  MemoryByKind peak;                                // what there is when there is most
  std::size_t segment = 0;                          // of the instruction that it is then at
  std::size_t instruction = 0;                      // in the segment
  MemoryByKind end;                                 // after the last instruction: sources and results
  std::vector<std::vector<MemoryUse>> uses;         // by segment; of all instructions but a Free
  std::vector<std::vector<MemoryUse>> activations;  // likewise, of this kind alone
  friend bool operator==(const Memory&, const Memory&) = default;
};

// On the processor. `threads`: of a kernel, some of which take memory for each.
Memory memory_of(const Program& program, int threads);

// "aten::mm in module "h.0.attn"": where it is that most is wanted.
std::string place_of_peak(const Program& program, const Memory& memory);

}  // namespace shoal::program
