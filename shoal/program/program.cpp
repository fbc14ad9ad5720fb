// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/program.h"

namespace shoal::program {

Place place_of(const Program& program, std::size_t n) {
  std::size_t segment = 0;
  for (; n >= program.segments.at(segment).instructions.size(); ++segment)
    n -= program.segments[segment].instructions.size();
  return {segment, n};
}

std::size_t size_of(const Program& program) {
  std::size_t size = 0;
  for (const Segment& segment : program.segments) size += segment.instructions.size();
  return size;
}

std::optional<std::size_t> find_segment(const Program& program, ir::Phase phase, int stage) {
  for (std::size_t i = 0; i < program.segments.size(); ++i)
    if (program.segments[i].phase == phase && program.segments[i].stage == stage &&
        !program.segments[i].is_weights)
      return i;
  return std::nullopt;
}

std::optional<std::size_t> find_weights(const Program& program, int stage) {
  for (std::size_t i = 0; i < program.segments.size(); ++i)
    if (program.segments[i].stage == stage && program.segments[i].is_weights) return i;
  return std::nullopt;
}

static bool may_follow(const Segment& weights, const Segment& other) {
  const bool is_first_part = other.phase == ir::Phase::Backward && !other.is_weights;
  return weights.is_weights && other.phase != ir::Phase::Forward &&
         (is_first_part ? other.stage < weights.stage : other.stage != weights.stage);
}

bool are_unordered(const Segment& a, const Segment& b) { return may_follow(a, b) || may_follow(b, a); }

const Source* find_source(const Program& program, ir::Role role, std::string_view name) {
  for (const auto& source : program.sources)
    if (source.role == role && source.name == name) return &source;
  return nullptr;
}

const Result* find_result(const Program& program, ir::Role role, std::string_view name) {
  for (const auto& result : program.results)
    if (result.role == role && result.name == name) return &result;
  return nullptr;
}

}  // namespace shoal::program
