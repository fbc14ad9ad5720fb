// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/running.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::cli {

using std::chrono_literals::operator""s;

Running::Running(const std::string& folder)
    : job_(elastic::read_job_file(folder)), store_(elastic::store_of(job_, job_.epoch)), maps_(*store_) {
  sigemptyset(&ends_);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&ends_, signal);
  pthread_sigmask(SIG_BLOCK, &ends_, nullptr);
}

ps::ShardMap Running::map() const {
  for (const auto end = std::chrono::steady_clock::now() + 10s;;) {
    ps::ShardMap map = maps_.find();
    if (map.number > 0) return map;
    SHOAL_CHECK(std::chrono::steady_clock::now() < end && interrupted_within(50) == 0, Timeout,
                "ps: the job's servers have not all come yet; try again");
  }
}

ps::Client Running::client() const {
  map();
  return {job_.key,
          std::vector<ps::Endpoint>(),
          {.epoch = static_cast<std::uint32_t>(job_.epoch), .limit = 60s, .maps = maps_}};
}

int Running::interrupted_within(long milliseconds) const {
  const timespec time = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000};
  return std::max(0, sigtimedwait(&ends_, nullptr, &time));
}

}  // namespace shoal::cli
