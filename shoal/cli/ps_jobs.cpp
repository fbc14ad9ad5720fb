// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/ps_jobs.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/running.h"
#include "shoal/ps/moves.h"

namespace shoal::cli {

using Clock = std::chrono::steady_clock;

// Until there are no more moves, with a line of how far they are. `is_there`: what is waited for besides.
static int wait(const Running& running, const std::string& what,
                const std::function<bool(const ps::ShardMap&)>& is_there) {
  const auto begin = Clock::now();
  const bool redraws = isatty(STDOUT_FILENO) == 1;
  int moved = -1, most = 0;
  for (;;) {
    const ps::ShardMap map = running.maps().find();
    const int left = ps::num_moves(map);
    most = std::max(most, left);
    if (std::exchange(moved, most - left) != moved && most > 0) {
      std::printf(redraws ? "\r%s: %d of %d moves" : "%s: %d of %d moves\n", what.c_str(), moved, most);
      std::fflush(stdout);
    }
    if (left == 0 && is_there(map)) break;
    if (running.interrupted_within(50) == 0) continue;
    say(concat(redraws ? "\n" : "", what, ": interrupted; the servers go on with it"));
    return 130;
  }
  if (redraws && most > 0) std::puts("");
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const ps::ShardMap map = running.maps().find();
  std::string servers;
  for (const int server : map.staying()) servers += concat(servers.empty() ? "" : ", ", server);
  char time[32];
  std::snprintf(time, sizeof time, "%.1f s", seconds);
  say(concat(what, ": done in ", time, "; the servers are ", servers, ", of ", map.parts.size(), " parts"));
  return 0;
}

void check(PsJob& options) {
  SHOAL_CHECK(options.servers >= 1 && options.servers <= 1024, InvalidInput, "ps add: --servers is ",
              options.servers, ", wanted 1 to 1024");
  SHOAL_CHECK(options.min_score >= 0, InvalidInput, "ps save: --min-score is ", options.min_score,
              ", wanted at least 0");
  SHOAL_CHECK(options.for_serving || options.min_score == 0, InvalidInput,
              "ps save: --min-score is of rows that are served. Remedy: --for-serving");
  SHOAL_CHECK(options.day >= -1 && options.day < (std::int64_t{1} << 32), InvalidInput,
              "ps shrink: --day is ", options.day, ", wanted 0 or more");
  SHOAL_CHECK(options.every >= 0.05 && options.every <= 86400, InvalidInput, "ps top: --every is ",
              options.every, ", wanted 0.05 to 86,400 seconds");
}

int ps_add(const PsJob& options) {
  const Running running(options.folder);
  const ps::ShardMap before = running.map();
  const auto staying = before.staying();
  const auto all =
      std::ranges::count_if(before.servers, [&](int one) { return std::ranges::count(staying, one) > 0; });
  const auto loops = all / std::max<std::ptrdiff_t>(1, std::ssize(staying));
  const auto wanted = all + options.servers * loops;
  SHOAL_CHECK(wanted <= std::ssize(before.parts), InvalidInput, "ps add: ", wanted,
              " threads of servers would share ", before.parts.size(),
              " parts of the keys, so that some had none. Remedy: begin the job with --ps.parts=", wanted,
              " or more");
  std::vector<int> numbers;
  for (int i = 0; i < options.servers; ++i) numbers.push_back(elastic::ask_for_server(running.job()));
  std::string what = numbers.size() == 1 ? "server " : "servers ";
  for (const int number : numbers) what += concat(number == numbers[0] ? "" : ", ", number);
  return wait(running, what, [&](const ps::ShardMap& map) {
    return std::ranges::all_of(numbers,
                               [&](int number) { return map.has(number) || map.is_leaving(number); });
  });
}

int ps_remove(const PsJob& options) {
  const Running running(options.folder);
  ps::ShardMap map = running.map();
  SHOAL_CHECK(!map.is_leaving(options.server) || map.has(options.server), InvalidInput, "ps remove: server ",
              options.server, " has left already");
  while (!map.is_leaving(options.server))
    map = running.maps().replace(map, ps::with_leaving(map, options.server));
  return wait(running, concat("server ", options.server),
              [&](const ps::ShardMap& now) { return !now.has(options.server); });
}

}  // namespace shoal::cli
