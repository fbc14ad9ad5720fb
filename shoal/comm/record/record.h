// SPDX-License-Identifier: Apache-2.0
// A rank without peers, for dry runs: logs what it would say to the others. What would come from them is
// zeros, and a reduction leaves what this rank has; so a program runs to its end, with numbers that mean
// nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shoal/comm/call.h"

namespace shoal::comm {

struct RecordedCall {                        // of this rank
  std::vector<int> group;                    // the ranks that it is between, as numbered in the whole job
  Call call;                                 // what was asked for
  std::int64_t in_count = 0, out_count = 0;  // elements of this rank's buffers
  friend bool operator==(const RecordedCall&, const RecordedCall&) = default;
};

// "all_reduce(f32 x 10, sum) between 0 1 2, 10 in, 10 out": one line, without its end.
std::string to_text(const RecordedCall& call);

// The communicator of that rank of `size`. Appends to `log`, which outlives it and its subgroups. Throws
// InvalidInput for a rank outside of them.
std::unique_ptr<Communicator> record(int rank, int size, std::vector<RecordedCall>& log);

}  // namespace shoal::comm
