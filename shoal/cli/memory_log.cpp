// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/memory_log.h"

#include <algorithm>

#include "shoal/base/error.h"
#include "shoal/base/held.h"
#include "shoal/observe/summary.h"
#include "shoal/runtime/allocator.h"

namespace shoal::cli {

MemoryLog::MemoryLog() {
  runtime::install_allocator();
  look();
  proportional_before_ = proportional_;
}

void MemoryLog::look() {
  const observe::MemoryNow now = observe::memory_now();
  proportional_ = std::max(proportional_, now.proportional);
  of_others_ = now.of_others;
}

std::int64_t MemoryLog::of_process() const { return observe::peak_memory_bytes(of_others_); }

std::int64_t MemoryLog::end(const std::string& phase) {
  const std::int64_t peak = most_held();
  auto known = std::ranges::find(phases_, phase, &Phase::name);
  if (known == phases_.end()) known = phases_.insert(known, {.name = phase});
  known->peak = std::max(known->peak, peak);
  look();
  return known->peak;
}

const MemoryLog::Phase& MemoryLog::largest() const {
  SHOAL_CHECK(!phases_.empty(), Internal, "memory: nothing has ended yet");
  return *std::ranges::max_element(phases_, {}, &Phase::peak);
}

}  // namespace shoal::cli
