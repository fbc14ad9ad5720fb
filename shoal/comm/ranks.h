// SPDX-License-Identifier: Apache-2.0
// Runs a function once a rank: ranks as threads.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shoal/comm/communicator.h"

namespace shoal::comm {

// What one rank does, with its communicator.
using RankFunction = std::function<void(Communicator&)>;

// A thread for each communicator. If one throws, its communicator is aborted, so that the others end too;
// when all have ended the error that came first is thrown.
void run_as_threads(std::vector<std::unique_ptr<Communicator>> ranks, const RankFunction& function);

}  // namespace shoal::comm
