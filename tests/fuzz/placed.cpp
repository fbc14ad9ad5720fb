// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/placed_text.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::reads_back(
      fuzz::text_of(data, size), [](std::string_view text) { return rewrite::placed_from_text(text); },
      [](const rewrite::Placed& placed) { return rewrite::to_text(placed); });
  return 0;
}
