// SPDX-License-Identifier: Apache-2.0
// How fast the machines are that placements are searched for.
#pragma once

namespace shoal::planner {

// What a device of the axis does in a second.
struct Rates {
  double flops = 5e10;    // of matrix products
  double memory = 1e10;   // bytes that ops over elements read and write
  double link = 1e9;      // bytes that a rank sends
  double latency = 1e-5;  // seconds for each message
  // What of a matrix each rank keeps whole counts as if so many times its bytes were sent each step: memory is
  // what an axis is there for.
  double kept = 4;

  friend bool operator==(const Rates&, const Rates&) = default;
};

}  // namespace shoal::planner
