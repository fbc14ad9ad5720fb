// SPDX-License-Identifier: Apache-2.0
#include "shoal/observe/trace.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::reads_back(
      fuzz::text_of(data, size), [](std::string_view text) { return observe::from_text(text); },
      [](const observe::Trace& trace) { return observe::to_text(trace); });
  return 0;
}
