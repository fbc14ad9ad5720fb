// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: forked, and gone with the test program however that ends.
#pragma once

#include <functional>
#include <vector>

namespace shoal::tests {

// Runs body(rank) in a process for each rank. Gives back their exit codes: 0 where the body returned, 1 where
// it threw (printed), 128 + the signal where one ended it.
std::vector<int> run_processes(int size, const std::function<void(int rank)>& body);

}  // namespace shoal::tests
