// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/definition.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::reads_back(
      fuzz::text_of(data, size), [](std::string_view text) { return ps::definition_from_text(text); },
      [](const ps::Definition& definition) { return ps::to_text(definition); });
  fuzz::refused_or_done([&] { ps::check(ps::definition_from_text(fuzz::text_of(data, size))); });
  return 0;
}
