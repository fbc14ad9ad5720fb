// SPDX-License-Identifier: Apache-2.0
#include "shoal/schedule/csv.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::refused_or_done([&] {
    const auto timeline = schedule::from_csv(fuzz::text_of(data, size), "it");
    const std::string again = schedule::to_csv(timeline);
    if (schedule::to_csv(schedule::from_csv(again, "it")) != again)
      fuzz::give_up("reads as another: ", again.c_str());
  });
  return 0;
}
