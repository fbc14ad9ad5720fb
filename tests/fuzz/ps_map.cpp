// SPDX-License-Identifier: Apache-2.0
// A map of servers, which the job's store has as text.
#include "shoal/ps/shard_map.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::reads_back(
      fuzz::text_of(data, size), [](std::string_view text) { return ps::map_from_text(text); },
      [](const ps::ShardMap& map) { return ps::to_text(map); });
  return 0;
}
