// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/ps_servers.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <sstream>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/elastic/place.h"
#include "shoal/ps/client.h"
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

std::unique_ptr<ps::Tables> tables_on_servers(elastic::Job& job, int servers) {
  SHOAL_CHECK(job.key(), InvalidInput, "ps.servers is ", servers,
              ", and who started this job has started none. Remedy: shoal train -n RANKS starts both");
  std::vector<ps::Endpoint> endpoints;
  for (int server = 0; server < servers; ++server)
    for (const ps::Endpoint& endpoint : endpoints_of(job.store().get(key_of(server), job.limit())))
      endpoints.push_back(endpoint);
  return std::make_unique<ps::Client>(*job.key(), endpoints,
                                      ps::ClientOptions{.epoch = job.epoch(), .limit = job.limit()});
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
  const auto servers = static_cast<std::uint32_t>(elastic::number_in(environment, "SHOAL_SERVERS"));
  const auto loops = static_cast<std::uint32_t>(options.threads);
  const ps::Server serves(member.key, {.address = member.address,
                                       .loops = loops,
                                       .first_loop = static_cast<std::uint32_t>(server) * loops,
                                       .all_loops = servers * loops,
                                       .epoch = member.epoch});
  member.store->set(key_of(server), to_text(serves.endpoints()));
  int signal = 0;
  sigwait(&ends, &signal);
  return 0;
}

}  // namespace shoal::cli
