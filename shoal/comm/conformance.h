// SPDX-License-Identifier: Apache-2.0
// What every backend has to do, as calls with known results. Each rank runs the same function, as a thread or
// as a process; what is expected is computed from what all ranks put in, reductions by reference.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "shoal/comm/communicator.h"

namespace shoal::comm {

struct Conformance {
  // Element types, and how many elements the large calls move.
  std::vector<DType> dtypes = {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16,
                               DType::Int64,   DType::Int32,   DType::UInt8};
  std::int64_t large = 70001;
  // Small whole numbers, whose sums are exact: for backends that sum in another order than that of ranks, or
  // round in between. Otherwise elements are of any size, and every bit is compared.
  bool exact_sums = false;
  bool self_messages = true;  // a rank sends to itself
  bool subgroups = true;
  std::chrono::nanoseconds limit = std::chrono::seconds{60};  // of each wait
};

// Every operation, type, reduction and count (0, 1, odd, large), from the first and the last root, uneven
// parts, messages both ways, foreign and allocated buffers, in place and not, subgroups. Throws at the first
// difference, with the call, the rank and the element.
void conform(Communicator& communicator, const Conformance& options = {});

// `num_calls` calls, drawn from `seed`, with several under way at a time, waited for in another order on each
// rank. Throws as `conform` does.
void random_calls(Communicator& communicator, std::uint64_t seed, int num_calls,
                  const Conformance& options = {});

}  // namespace shoal::comm
