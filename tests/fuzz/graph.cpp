// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/text.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::reads_back(
      fuzz::text_of(data, size), [](std::string_view text) { return ir::from_text(text); },
      [](const ir::Graph& graph) { return ir::to_text(graph); });
  return 0;
}
