// SPDX-License-Identifier: Apache-2.0
// A rank that leaves out a message may go on, and wait for others that wait for it. From outside all of them
// wait; what a rank has called tells: one of the calls that it makes step after step is missing in the last one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shoal/elastic/flight.h"

namespace shoal::elastic {

struct LeftOut {
  int to = 0;  // the rank of the job that it was for
  // As that one has it among its calls: "call 17 of [0,1]", "receive(f32 x 512, from 0, micro-batch 3, message 1)".
  std::string call, receive;
  std::string send;  // "send(f32 x 512, to 1, micro-batch 3, message 1)"
  friend bool operator==(const LeftOut&, const LeftOut&) = default;
};

// The send with a tag that is missing from the last calls of this rank of the job, though what comes after it is
// there: by its calls of the step before; in the first step by those of other micro-batches. Says nothing for
// sure: another rank that waits for this very message does.
std::optional<LeftOut> left_out(const FlightLog& log, int rank);

// Of a group "[4,1,2]", or of one made of it, "[4,1,2][0,2]": the job's rank, or -1; "" is the job.
int job_rank_of(std::string_view group, int rank);

// Of one of the job's ranks: which one of the group it is, or -1.
int group_rank_of(std::string_view group, int rank);

}  // namespace shoal::elastic
