// SPDX-License-Identifier: Apache-2.0
// Who is to blame when a job fails, and whether it is started again. Decides from what is known of all ranks;
// reads no clock and asks no process.
//
//   first   a rank that ended on its own account: by a signal, or with an error that is not about others
//           where that error compares calls: the rank whose call differs from most; of a message the rank that
//           left it out, where that is known
//   else    a rank that is stopped
//   else    a rank that ended as if all were well while others waited for it
//   else    the ranks that never came to the job
//   else    a rank that left out a message for which another one waits
//   else    two ranks that wait for each other
//   else    the ranks that have made the fewest calls: the others wait for them
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/elastic/left_out.h"

namespace shoal::elastic {

// What the launcher knows of a rank when the job fails.
struct RankReport {
  int rank = 0;
  std::string host;
  int process = 0;
  bool ended = false;      // on its own, not because the launcher ended it
  bool by_signal = false;  // then `code` is the signal
  int code = 0;
  std::string how;           // "exit code 3", "killed by signal 9 (Killed)", "stopped", "running"
  std::int64_t when_ms = 0;  // it ended, by the clock of its host
  bool stopped = false;

  // Of the flight recorder, if the program has one.
  std::uint64_t num_calls = 0;
  std::optional<ErrorKind> kind;
  std::string error;
  std::string last, current;  // "call 17, all_reduce(f32 x 1000, sum), in h.3.mlp"; empty where there is none
  // The last few, the newest last: "call 17 of [0,1]", "barrier()".
  std::vector<std::pair<std::string, std::string>> calls;
  bool waits = false;  // for the last of them, and does nothing else
  std::optional<LeftOut> left_out;
  std::vector<std::string> tail;  // of its output
  friend bool operator==(const RankReport&, const RankReport&) = default;
};

struct Culprit {
  std::vector<int> ranks;
  std::string why;
};
// Of ranks that all run: who has left out a message, so that it and the rank that asks for it wait for each other
// for ever.
std::optional<Culprit> standstill_of(std::span<const RankReport> ranks);

Culprit culprit_of(std::span<const RankReport> ranks);

std::string verdict_of(const Culprit& culprit);  // "rank 1 failed first: exit code 3"

// The report that people read: the culprit with the end of its output, then a line for each other rank.
std::string summary_of(std::span<const RankReport> ranks, const Culprit& culprit);

// JSON, for the other hosts.
std::string to_text(std::span<const RankReport> ranks);
std::vector<RankReport> reports_of(const std::string& text);  // throws Corrupt

struct Restart {
  bool again = false;
  std::string why;  // one line, for the log
};
Restart decide_restart(int restarts, int max_restarts, std::span<const RankReport> ranks,
                       const Culprit& culprit);

}  // namespace shoal::elastic
