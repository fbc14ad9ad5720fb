// SPDX-License-Identifier: Apache-2.0
// The last calls of a rank in one group, for backends that compare calls only once one waits for long: then
// each rank shows its log to the others, and who reads two of them finds where they differ.
//
//   lane 0               collectives             numbered alike on all ranks
//   lanes 1 + 2p, 2 + 2p messages to, from p     numbered alike on the two ranks
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/comm/call.h"

namespace shoal::comm {

class CallLog {
 public:
  explicit CallLog(int size) : lanes_(1 + 2 * static_cast<std::size_t>(size)) {}

  static std::size_t lane_of(const Call& call);
  std::uint64_t add(const Call& call);  // gives its number in its lane
  std::size_t num_lanes() const { return lanes_.size(); }
  std::uint64_t num(std::size_t lane) const { return lanes_[lane].num; }
  // Null where it has not been made, or so long ago that it is not kept.
  const Call* find(std::size_t lane, std::uint64_t number) const;

  std::string to_text() const;
  static CallLog from_text(std::string_view text, int size);  // throws Corrupt

 private:
  struct Lane {
    std::uint64_t num = 0;
    std::vector<Call> last;  // call n stands at n % kKept
  };
  std::vector<Lane> lanes_;
};

// The first difference between the calls of two ranks that both logs know, as `mismatch` says it; else empty.
std::string difference(int rank, const CallLog& log, int other, const CallLog& other_log);

}  // namespace shoal::comm
