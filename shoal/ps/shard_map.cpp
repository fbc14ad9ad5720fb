// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/shard_map.h"

#include <algorithm>
#include <sstream>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::ps {

static constexpr std::size_t kMostParts = 1U << 16;

int ShardMap::loop_at(const Endpoint& endpoint) const {
  const auto at = std::ranges::find(loops, endpoint);
  return at == loops.end() ? kNone : static_cast<int>(at - loops.begin());
}

int ShardMap::num_without_copy() const {
  return static_cast<int>(std::ranges::count(parts, kNone, &Part::copy));
}

int ShardMap::num_of(int loop) const {
  return static_cast<int>(std::ranges::count_if(
      parts, [&](const Part& part) { return part.primary == loop || part.copy == loop; }));
}

ShardMap first_map(std::vector<Endpoint> loops, std::uint32_t loops_a_server) {
  const auto all = static_cast<int>(loops.size());
  const auto next = static_cast<int>(loops_a_server);
  SHOAL_CHECK(all > next && all % next == 0 && loops.size() < kMostParts, InvalidInput,
              "ps: two copies of rows want two servers or more of as many loops each, and there are ", all,
              " loops, ", next, " a server; ps.copies=1 keeps one");
  ShardMap map = {.number = 1, .loops = std::move(loops), .servers = {}, .parts = {}};
  for (int loop = 0; loop < all; ++loop) {
    map.servers.push_back(loop / next);
    map.parts.push_back({.primary = loop, .copy = (loop + next) % all});
  }
  return map;
}

ShardMap without(const ShardMap& map, int loop) {
  ShardMap next = map;
  ++next.number;
  next.loops.at(static_cast<std::size_t>(loop)).port = 0;
  for (ShardMap::Part& part : next.parts) {
    if (part.copy == loop) part.copy = ShardMap::kNone;
    if (part.primary == loop) part = {.primary = part.copy, .copy = ShardMap::kNone};
  }
  return next;
}

ShardMap with_server(const ShardMap& map, int server, const std::vector<Endpoint>& loops) {
  ShardMap next = map;
  const auto is_of_it = [&](std::size_t loop) { return next.servers[loop] == server; };
  for (std::size_t loop = 0; loop < map.loops.size(); ++loop)
    if (is_of_it(loop) && map.loops[loop].port != 0 && std::ranges::count(loops, map.loops[loop]) == 0)
      next = without(next, static_cast<int>(loop));
  for (const Endpoint& endpoint : loops) {
    if (next.loop_at(endpoint) != ShardMap::kNone) continue;
    std::size_t place = 0;
    while (place < next.loops.size() && (next.loops[place].port != 0 || !is_of_it(place))) ++place;
    if (place == next.loops.size()) {
      next.loops.emplace_back();
      next.servers.push_back(server);
    }
    next.loops[place] = endpoint;
  }
  next.number = map.number + 1;
  return next;
}

ShardMap with_copy(const ShardMap& map, std::uint32_t part, int loop) {
  ShardMap next = map;
  ++next.number;
  next.parts.at(part).copy = loop;
  return next;
}

int copy_for(const ShardMap& map, std::uint32_t part, bool fair) {
  const int server = map.servers.at(static_cast<std::size_t>(map.parts.at(part).primary));
  int best = ShardMap::kNone;
  for (int loop = 0; loop < static_cast<int>(map.loops.size()); ++loop) {
    const auto at = static_cast<std::size_t>(loop);
    const bool has_its_share =
        static_cast<std::size_t>(map.num_of(loop)) * map.loops.size() >= 2 * map.parts.size();
    if (map.loops[at].port == 0 || map.servers[at] == server || (fair && has_its_share)) continue;
    if (best == ShardMap::kNone || map.num_of(loop) < map.num_of(best)) best = loop;
  }
  return best;
}

std::string to_text(const ShardMap& map) {
  std::string text = concat(map.number, ' ', map.loops.size(), ' ', map.parts.size());
  for (std::size_t loop = 0; loop < map.loops.size(); ++loop)
    text += concat(' ', map.loops[loop].address, ' ', map.loops[loop].port, ' ', map.servers[loop]);
  for (const auto& [primary, copy] : map.parts) text += concat(' ', primary, ' ', copy);
  return text;
}

ShardMap map_from_text(std::string_view text) {
  std::istringstream words{std::string(text)};
  ShardMap map;
  std::size_t loops = 0, parts = 0;
  words >> map.number >> loops >> parts;
  bool is_good = words && loops < kMostParts && parts < kMostParts;
  map.loops.resize(is_good ? loops : 0);
  map.parts.resize(is_good ? parts : 0);
  map.servers.resize(map.loops.size());
  for (std::size_t loop = 0; loop < map.loops.size(); ++loop)
    words >> map.loops[loop].address >> map.loops[loop].port >> map.servers[loop];
  const auto is_loop = [&](int loop) { return loop >= ShardMap::kNone && loop < static_cast<int>(loops); };
  for (auto& [primary, copy] : map.parts) {
    words >> primary >> copy;
    is_good = is_good && is_loop(primary) && is_loop(copy);
  }
  SHOAL_CHECK(is_good && words, Corrupt, "ps: this is no map of servers: ", in_quotes(text));
  return map;
}

}  // namespace shoal::ps
