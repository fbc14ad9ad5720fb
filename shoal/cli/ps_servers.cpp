// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/ps_servers.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <sstream>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/elastic/place.h"
#include "shoal/ps/client.h"
#include "shoal/ps/map_keeper.h"
#include "shoal/ps/server.h"

namespace shoal::cli {

static std::string key_of(int server) { return concat("ps/server/", server); }

// "127.0.0.1:4001 127.0.0.1:4002", an endpoint a loop.
static std::string to_text(const std::vector<ps::Endpoint>& endpoints) {
  std::string text;
  for (const ps::Endpoint& endpoint : endpoints)
    text += concat(text.empty() ? "" : " ", endpoint.address, ":", endpoint.port);
  return text;
}

static std::vector<ps::Endpoint> endpoints_of(const std::string& text) {
  std::vector<ps::Endpoint> endpoints;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t colon = word.rfind(':');
    ps::Endpoint endpoint = {.address = word.substr(0, colon)};
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data() + colon + 1, end, endpoint.port);
    SHOAL_CHECK(colon != std::string::npos && error == std::errc() && stop == end, Corrupt,
                "ps: a server says that it listens at ", in_quotes(word));
    endpoints.push_back(endpoint);
  }
  return endpoints;
}

std::unique_ptr<ps::Tables> tables_on_servers(elastic::Job& job, const PsServers& servers) {
  SHOAL_CHECK(job.key(), InvalidInput, "ps.servers is ", servers.servers,
              ", and who started this job has started none. Remedy: shoal train -n RANKS starts both");
  ps::ClientOptions options = {.epoch = static_cast<std::uint32_t>(job.epoch()), .limit = job.limit()};
  std::vector<ps::Endpoint> endpoints;
  std::size_t loops_a_server = 0;
  for (int server = 0; server < servers.servers; ++server) {
    const auto loops = endpoints_of(job.store().get(key_of(server), job.limit()));
    endpoints.insert(endpoints.end(), loops.begin(), loops.end());
    loops_a_server = loops.size();
  }
  options.maps.emplace(job.store());
  options.maps->begin(ps::first_map(endpoints, {.loops_a_server = static_cast<std::uint32_t>(loops_a_server),
                                                .copies = static_cast<std::uint32_t>(servers.copies),
                                                .parts = static_cast<std::uint32_t>(servers.parts)}));
  return std::make_unique<ps::Client>(*job.key(), endpoints, options);
}

// One of the servers says what is true of all.
static bool is_first(const ps::ShardMap& map, const std::vector<ps::Endpoint>& loops) {
  return !map.parts.empty() && std::ranges::count(loops, map.endpoint_of(map.parts[0].primary)) > 0;
}

void check(PsServe& options) {
  SHOAL_CHECK(options.threads >= 1, InvalidInput, "ps serve: --threads is ", options.threads,
              ", wanted at least 1");
}

int ps_serve(const PsServe& options) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before there are threads
  const elastic::Environment environment = elastic::environment_of(environ);
  const elastic::Member member = elastic::member_of(environment);
  const auto server = static_cast<int>(elastic::number_in(environment, "SHOAL_SERVER"));
  const auto loops = static_cast<std::uint32_t>(options.threads);
  const ps::MapKeeper maps(*member.store);
  const ps::Server serves(member.key, {.address = member.address,
                                       .loops = loops,
                                       .all_loops = loops,
                                       .epoch = static_cast<std::uint32_t>(member.epoch),
                                       .maps = maps});
  const auto endpoints = serves.endpoints();
  member.store->set(key_of(server), to_text(endpoints));
  bool lacked_copies = false;
  const auto has_left = [&] {
    // Where the others go on without this one, it comes again.
    if (!maps.join(server, endpoints)) return true;
    const ps::ShardMap map = maps.find();
    const bool lacks_copies = map.num_lacking() > 0;
    if (std::exchange(lacked_copies, lacks_copies) && !lacks_copies && is_first(map, endpoints))
      say("each row is on two servers again");
    return false;
  };
  const timespec between_looks = {.tv_sec = 0, .tv_nsec = 50'000'000};
  for (;;) try {
      if (const int signal = sigtimedwait(&ends, nullptr, &between_looks); signal > 0) return 128 + signal;
      if (has_left()) return 0;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;  // the job's store is slow, or the job ends
    }
}

}  // namespace shoal::cli
