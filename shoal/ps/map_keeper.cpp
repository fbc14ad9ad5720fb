// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/map_keeper.h"

#include <charconv>
#include <sstream>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::ps {

static constexpr std::string_view kKey = "ps/map";

static std::string key_of(int server) { return concat("ps/server/", server); }

// "127.0.0.1:4001 127.0.0.1:4002", an endpoint a loop.
static std::string to_text(const std::vector<Endpoint>& endpoints) {
  std::string text;
  for (const Endpoint& endpoint : endpoints)
    text += concat(text.empty() ? "" : " ", endpoint.address, ":", endpoint.port);
  return text;
}

static std::vector<Endpoint> endpoints_of(const std::string& text) {
  std::vector<Endpoint> endpoints;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t colon = word.rfind(':');
    Endpoint endpoint = {.address = word.substr(0, colon)};
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data() + colon + 1, end, endpoint.port);
    SHOAL_CHECK(colon != std::string::npos && error == std::errc() && stop == end, Corrupt,
                "ps: a server says that it listens at ", in_quotes(word));
    endpoints.push_back(endpoint);
  }
  return endpoints;
}

void MapKeeper::enroll(int server, const std::vector<Endpoint>& loops) const {
  store_->set(key_of(server), to_text(loops));
}

ShardMap MapKeeper::begin(int servers, std::uint32_t copies, std::uint32_t parts) const {
  std::vector<Endpoint> all;
  FirstMap first = {.copies = copies, .parts = parts};
  for (int server = 0; server < servers; ++server) {
    const auto text = store_->find(key_of(server));
    if (!text) return {};
    const auto loops = endpoints_of(*text);
    first.loops_a_server = static_cast<std::uint32_t>(loops.size());
    all.insert(all.end(), loops.begin(), loops.end());
  }
  return begin(first_map(std::move(all), first));
}

ShardMap MapKeeper::wait(std::chrono::nanoseconds limit) const {
  try {
    return map_from_text(store_->get(kKey, limit));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Timeout) throw;
    fail(ErrorKind::Timeout, "ps: the job's servers have not all come within ",
         std::chrono::duration_cast<std::chrono::seconds>(limit).count(), " s");
  }
}

ShardMap MapKeeper::find() const {
  const auto text = store_->find(kKey);
  return text ? map_from_text(*text) : ShardMap();
}

bool MapKeeper::join(int server, const std::vector<Endpoint>& loops) const {
  ShardMap map = find();
  while (map.number > 0) {
    ShardMap next = with_server(map, server, loops);
    next.number = map.number;
    if (next == map) break;
    ++next.number;
    map = replace(map, next);
  }
  return !map.is_leaving(server) || map.has(server);
}

ShardMap MapKeeper::put(const std::string& seen, const ShardMap& next) const {
  return map_from_text(store_->compare_and_set(kKey, seen, to_text(next)));
}

}  // namespace shoal::ps
