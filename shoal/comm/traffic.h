// SPDX-License-Identifier: Apache-2.0
// What a communicator has moved, counted where bytes cross between ranks.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::comm {

// Of one rank. Where memory is shared, bytes cross when a rank reads another's memory or writes to it.
struct Traffic {
  std::vector<std::int64_t> pulled;  // bytes read from each rank
  std::vector<std::int64_t> pushed;  // bytes written to each rank
  std::int64_t num_steps = 0;        // how often this rank waited for all others to come equally far
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// A communicator that counts; ask by dynamic_cast, and get null where it does not.
class Counted {
 public:
  virtual ~Counted() = default;
  virtual Traffic traffic() const = 0;  // since it was made; from the thread that calls
};

}  // namespace shoal::comm
