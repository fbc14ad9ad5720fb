// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/program.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::reads_back(
      fuzz::text_of(data, size), [](std::string_view text) { return program::from_text(text); },
      [](const program::Program& program) { return program::to_text(program); });
  return 0;
}
