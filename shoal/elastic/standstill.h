// SPDX-License-Identifier: Apache-2.0
// Ranks of which none makes a call any more, as one has left out the message that another one waits for: noticed
// without waiting for the limit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/elastic/local_rank.h"
#include "shoal/rendezvous/deadline.h"

namespace shoal::elastic {

class Standstill {
 public:
  static constexpr int kLook = 1000;  // ms: how often to look

  // All ranks of the job. Why it is to end, or nothing. Reads a number of each rank, and more only where those have
  // been the same for seconds.
  std::string look(std::span<const Rank> ranks);

 private:
  std::vector<std::uint64_t> num_calls_;
  rendezvous::Clock::time_point looked_, since_;
  std::chrono::milliseconds patience_{};
};

}  // namespace shoal::elastic
