// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/measure.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/comm/record/record.h"
#include "shoal/runtime/allocator.h"
#include "shoal/runtime/executor.h"

namespace shoal::runtime {

using program::MemoryUse;

static at::Tensor source_of(const program::Source& source, const ir::TensorType& type, FileMemory* files) {
  const at::ScalarType dtype = aten::to_torch(type.dtype);
  at::Tensor tensor = source.is_offloaded ? files->empty_strided(type.shape, type.strides, dtype)
                                          : at::empty_strided(type.shape, type.strides, dtype);
  if (source.role == ir::Role::Scalar) return tensor.fill_(1);  // a step's number, a rate
  return tensor.zero_();
}

static bool offloads(const program::Program& program) {
  const auto to_file = [](const program::Instruction& instruction) {
    const auto* compute = std::get_if<program::Compute>(&instruction);
    return compute != nullptr && compute->op == "shoal::to_file";
  };
  return std::ranges::any_of(program.sources, &program::Source::is_offloaded) ||
         std::ranges::any_of(program.segments, [&](const program::Segment& segment) {
           return std::ranges::any_of(segment.instructions, to_file);
         });
}

static std::vector<std::string> texts_of(const program::Program& program, std::size_t segment) {
  std::vector<std::string> texts;
  for (const auto& instruction : program.segments[segment].instructions)
    if (!std::holds_alternative<program::Free>(instruction))
      texts.push_back(program::to_text(program, instruction));
  return texts;
}

Measured measure(const program::Program& program, const program::Memory& said, const sharding::Mesh& mesh,
                 int rank) {
  install_allocator();
  std::vector<comm::RecordedCall> calls;
  const auto world = comm::record(rank, mesh.size(), calls);
  std::optional<Groups> groups;
  if (mesh.size() > 1) groups.emplace(mesh, *world);
  std::optional<FileMemory> files;
  if (offloads(program)) files.emplace(kOffloadFolder);
  Executor executor(program, groups ? &*groups : nullptr, files ? &*files : nullptr);
  const std::int64_t before = memory_counts().live_bytes;
  for (const auto& source : program.sources)
    executor.bind(source.slot,
                  source_of(source, program.types.at(source.slot.index), files ? &*files : nullptr));
  for (std::size_t segment = 0; segment < program.segments.size(); ++segment) executor.run(segment);
  executor.release();
  Measured measured = {.said = said.peak.total(), .was = 0, .misjudged = {}};
  for (std::size_t segment = 0; segment < program.segments.size(); ++segment) {
    const auto texts = texts_of(program, segment);
    const auto uses = executor.run_measured(segment);
    for (std::size_t at = 0; at < uses.size(); ++at) {
      const MemoryUse was = {uses[at].peak - before, uses[at].after - before};
      const MemoryUse& expected = said.uses.at(segment).at(at);
      measured.was = std::max(measured.was, was.peak);
      if (was != expected) measured.misjudged.push_back({texts[at], expected, was});
    }
  }
  return measured;
}

std::string to_text(const Measured& measured) {
  std::string text =
      concat("memory: said ", measured.said, " bytes, was ", measured.was, " (",
             100.0 * static_cast<double>(measured.said) / static_cast<double>(measured.was), " %)\n");
  for (const Misjudged& each : measured.misjudged)
    text += concat("  said ", each.said.peak, " then ", each.said.after, ", was ", each.was.peak, " then ",
                   each.was.after, " (", each.was.peak - each.said.peak, ", ",
                   each.was.after - each.said.after, "): ", each.instruction, '\n');
  return text;
}

}  // namespace shoal::runtime
