// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/plan.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::reads_back(
      fuzz::text_of(data, size), [](std::string_view text) { return compile::plan_from_text(text); },
      [](const compile::Plan& plan) { return compile::to_text(plan); });
  return 0;
}
