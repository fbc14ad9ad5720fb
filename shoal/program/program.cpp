// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/program.h"

namespace shoal::program {

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
