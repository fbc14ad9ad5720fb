// SPDX-License-Identifier: Apache-2.0
// What a step was said to take beside what it took, by op, on one rank.
//
//   measured    | step                         |     of the trainer's stream: what is of a step lies inside
//               | mm | add |   all_reduce   |  |     what lies in none of these is `beside`
//   simulated   | mm | add | all_reduce |
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shoal/cost/cluster.h"
#include "shoal/observe/trace.h"

namespace shoal::simulate {

struct OpTimes {
  std::string op;
  bool is_message = false;
  int calls = 0;                       // of a step, as simulated
  double simulated = 0, measured = 0;  // seconds of a step
  friend bool operator==(const OpTimes&, const OpTimes&) = default;
};

struct Comparison {
  int rank = 0;
  int programs = 1;                    // that this is the sum of
  int steps = 0;                       // that were measured
  double simulated = 0, measured = 0;  // seconds of a step
  double beside = 0;                   // of the measured ones, in no op
  std::vector<OpTimes> ops;            // those first that differ most
  friend bool operator==(const Comparison&, const Comparison&) = default;

  double off() const { return measured > 0 ? (simulated - measured) / measured : 0; }  // a share
};

// `simulated`: of one step. `measured`: of steps, events named "step" on the stream "trainer", of which the first
// `skip` are left out; medians over the others. Of the rank of `measured`. Messages of a stream take their time one after
// the other, though several may have been handed over. Throws InvalidInput where there is none.
Comparison compare(const observe::Trace& simulated, const observe::Trace& measured, std::size_t skip);

// What the one of those steps whose time is their median has on its rank: to be drawn.
observe::Trace median_step(const observe::Trace& measured, std::size_t skip);

// Nanoseconds of each message of a measured trace, in the order of their ends.
std::vector<double> message_times(const observe::Trace& measured);
// The trace with each of its messages that long before its end, and waiting before that.
observe::Trace with_message_times(observe::Trace measured, std::span<const double> nanoseconds);

// The cluster as it would have been right: ops and collectives take by as much longer as they did on that rank, a kernel
// the median of the calls of which that is nearly all, and a step as much in no op; all that is not in a comparison
// stays, and so does what a receive waits. Comparisons of steps of several sizes say of an op or a message that the
// cluster knows nothing of what calls of each size take; what is in no op is as in the last. `hosts`: of the ranks that
// were measured; of several it is the link between them that messages take their time on.
cost::Cluster learned(cost::Cluster cluster, std::span<const Comparison> by_size, int hosts);

// The same of steps that ranks of a host train together, held against a cluster that has learned from what each trains
// by itself: messages, ops that it knows nothing of, and what a step has in no op. All ops take by as much longer as a
// step of ranks that wait for each other does: it is as long as whichever device is slow just then.
cost::Cluster learned_together(cost::Cluster cluster, std::span<const Comparison> by_size);

// One line each: a step, and the ops of which more than a hundredth of it is, as a table.
std::string to_text(const Comparison& comparison);

}  // namespace shoal::simulate
