// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/ranks.h"

#include <exception>
#include <mutex>
#include <string>
#include <thread>

namespace shoal::comm {

void run_as_threads(std::vector<std::unique_ptr<Communicator>> ranks, const RankFunction& function) {
  std::mutex mutex;  // guards first
  std::exception_ptr first;
  const auto run = [&](Communicator& rank) {
    try {
      function(rank);
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      rank.abort("rank " + std::to_string(rank.rank()) + ": " + error.what());
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::unique_ptr<Communicator>& rank : ranks)
      threads.emplace_back([&run, rank = std::move(rank)] { run(*rank); });
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace shoal::comm
