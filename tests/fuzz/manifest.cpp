// SPDX-License-Identifier: Apache-2.0
// Whose first line is a checksum: it is made right.
#include "shoal/checkpoint/manifest.h"

#include "shoal/base/crc32c.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  const std::string rest(fuzz::text_of(data, size));
  fuzz::reads_back(
      "{\"crc32c\":\"" + hex(crc32c(rest)) + "\",\n" + rest,
      [](std::string_view text) { return checkpoint::from_text(text, "it"); },
      [](const checkpoint::Manifest& manifest) { return checkpoint::to_text(manifest); });
  return 0;
}
