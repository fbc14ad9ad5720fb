// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/shard_map.h"

#include <algorithm>
#include <sstream>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/moves.h"

namespace shoal::ps {

static constexpr std::size_t kMostParts = 1U << 16;

int ShardMap::loop_at(const Endpoint& endpoint) const {
  const auto at = std::ranges::find(loops, endpoint);
  return at == loops.end() ? kNone : static_cast<int>(at - loops.begin());
}

Endpoint ShardMap::endpoint_of(int loop) const {
  return loop == kNone ? Endpoint() : loops[static_cast<std::size_t>(loop)];
}

int ShardMap::tail_of(std::uint32_t part) const {
  const auto [primary, copy] = parts[part];
  return copy == kNone ? primary : copy;
}

int ShardMap::num_of(int loop) const {
  return static_cast<int>(std::ranges::count_if(
      parts, [&](const Part& part) { return part.primary == loop || part.copy == loop; }));
}

bool ShardMap::is_leaving(int server) const { return std::ranges::count(leaving, server) > 0; }

bool ShardMap::has(int server) const { return std::ranges::count(servers, server) > 0; }

bool ShardMap::stays(int loop) const { return endpoint_of(loop).port != 0 && !is_leaving(server_of(loop)); }

std::vector<int> ShardMap::staying() const {
  std::vector<int> all;
  for (int loop = 0; loop < static_cast<int>(loops.size()); ++loop)
    if (stays(loop) && std::ranges::count(all, server_of(loop)) == 0) all.push_back(server_of(loop));
  std::ranges::sort(all);
  return all;
}

std::uint32_t ShardMap::num_wanted() const {
  return std::min(copies, static_cast<std::uint32_t>(staying().size()));
}

bool ShardMap::lacks_copy(std::uint32_t part) const {
  const auto [primary, copy] = parts[part];
  if (copies < 2 || primary == kNone || copy != kNone) return false;
  for (int loop = 0; loop < static_cast<int>(loops.size()); ++loop)
    if (stays(loop) && server_of(loop) != server_of(primary)) return true;
  return false;
}

int ShardMap::num_lacking() const {
  int lacking = 0;
  for (std::uint32_t part = 0; part < parts.size(); ++part) lacking += lacks_copy(part) ? 1 : 0;
  return lacking;
}

bool ShardMap::has_single_rows() const {
  return copies > 1 && std::ranges::any_of(parts, [](const Part& part) {
           return part.primary != kNone && part.copy == kNone;
         });
}

ShardMap first_map(std::vector<Endpoint> loops, const FirstMap& first) {
  const auto all = static_cast<std::uint32_t>(loops.size()), next = first.loops_a_server;
  const std::uint32_t parts = first.parts == 0 ? all : first.parts;
  SHOAL_CHECK(all > 0 && all % next == 0 && parts < kMostParts, InvalidInput, "ps: a map of ", all,
              " loops, ", next, " a server, and ", parts, " parts");
  SHOAL_CHECK(parts >= all, InvalidInput, "ps: keys are in ", parts, " parts, and servers have ", all,
              " loops, of which some would have none. Remedy: ps.parts=", all, " or more");
  ShardMap map = {.number = 1,
                  .copies = first.copies,
                  .loops = std::move(loops),
                  .servers = {},
                  .parts = {},
                  .leaving = {}};
  for (std::uint32_t loop = 0; loop < all; ++loop) map.servers.push_back(static_cast<int>(loop / next));
  for (std::uint32_t part = 0; part < parts; ++part)
    map.parts.push_back(
        {.primary = static_cast<int>(part % all),
         .copy = map.num_wanted() > 1 ? static_cast<int>((part + next) % all) : ShardMap::kNone});
  map = balanced(std::move(map));
  map.number = 1;
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

// A free place for a loop of a server: rather one that it had.
static std::size_t place_for(ShardMap& map, int server) {
  for (const int of : {server, ShardMap::kNone})
    for (std::size_t place = 0; place < map.loops.size(); ++place)
      if (map.loops[place].port == 0 && map.servers[place] == of) return place;
  map.loops.emplace_back();
  map.servers.emplace_back();
  return map.loops.size() - 1;
}

ShardMap with_server(const ShardMap& map, int server, const std::vector<Endpoint>& loops) {
  ShardMap next = map;
  next.number = map.number + 1;
  const int all = static_cast<int>(map.loops.size());
  int parts = 0;
  for (int loop = 0; loop < all; ++loop) {
    if (map.server_of(loop) != server) continue;
    if (map.endpoint_of(loop).port != 0 && std::ranges::count(loops, map.endpoint_of(loop)) == 0)
      next = without(next, loop);
    parts += next.num_of(loop);
  }
  next.number = map.number + 1;
  if (map.is_leaving(server)) {
    for (int loop = 0; loop < all && parts == 0; ++loop) {
      if (map.server_of(loop) != server) continue;
      next.loops[static_cast<std::size_t>(loop)] = {.address = "-", .port = 0};
      next.servers[static_cast<std::size_t>(loop)] = ShardMap::kNone;
    }
    return next;
  }
  for (const Endpoint& endpoint : loops) {
    if (next.loop_at(endpoint) != ShardMap::kNone) continue;
    const std::size_t place = place_for(next, server);
    next.loops[place] = endpoint;
    next.servers[place] = server;
  }
  return next;
}

ShardMap with_leaving(const ShardMap& map, int server) {
  std::string there;
  const std::vector<int> staying = map.staying();
  for (const int one : staying) there += concat(there.empty() ? "" : ", ", one);
  SHOAL_CHECK(std::ranges::count(staying, server) > 0, InvalidInput, "ps: there is no server ", server,
              " that could leave; there is ", there);
  ShardMap next = map;
  ++next.number;
  next.leaving.push_back(server);
  SHOAL_CHECK(!next.staying().empty(), InvalidInput, "ps: server ", server,
              " is the last one, and rows have to be somewhere. Remedy: shoal ps add first");
  return next;
}

ShardMap with_part(const ShardMap& map, std::uint32_t part, const ShardMap::Part& becomes) {
  ShardMap next = map;
  ++next.number;
  next.parts.at(part) = becomes;
  return next;
}

int copy_for(const ShardMap& map, std::uint32_t part, bool fair) {
  const int server = map.server_of(map.parts.at(part).primary);
  const auto places = static_cast<std::size_t>(std::ranges::count_if(
      map.servers, [&](int one) { return one != ShardMap::kNone && !map.is_leaving(one); }));
  int best = ShardMap::kNone;
  for (int loop = 0; loop < static_cast<int>(map.loops.size()); ++loop) {
    if (!map.stays(loop) || map.server_of(loop) == server) continue;
    const bool has_its_share = static_cast<std::size_t>(map.num_of(loop)) * places >= 2 * map.parts.size();
    if (fair && has_its_share) continue;
    if (best == ShardMap::kNone || map.num_of(loop) < map.num_of(best)) best = loop;
  }
  return best;
}

std::string to_text(const ShardMap& map) {
  std::string text = concat(map.number, ' ', map.copies, ' ', map.loops.size(), ' ', map.parts.size(), ' ',
                            map.leaving.size());
  for (std::size_t loop = 0; loop < map.loops.size(); ++loop)
    text += concat(' ', map.loops[loop].address, ' ', map.loops[loop].port, ' ', map.servers[loop]);
  for (const auto& [primary, copy] : map.parts) text += concat(' ', primary, ' ', copy);
  for (const int server : map.leaving) text += concat(' ', server);
  return text;
}

ShardMap map_from_text(std::string_view text) {
  std::istringstream words{std::string(text)};
  ShardMap map;
  std::size_t loops = 0, parts = 0, leaving = 0;
  words >> map.number >> map.copies >> loops >> parts >> leaving;
  bool is_good = words && loops < kMostParts && parts < kMostParts && leaving < kMostParts &&
                 (map.copies == 1 || map.copies == 2);
  map.loops.resize(is_good ? loops : 0);
  map.parts.resize(is_good ? parts : 0);
  map.leaving.resize(is_good ? leaving : 0);
  map.servers.resize(map.loops.size());
  for (std::size_t loop = 0; loop < map.loops.size(); ++loop)
    words >> map.loops[loop].address >> map.loops[loop].port >> map.servers[loop];
  const auto is_loop = [&](int loop) { return loop >= ShardMap::kNone && loop < static_cast<int>(loops); };
  for (auto& [primary, copy] : map.parts) {
    words >> primary >> copy;
    is_good = is_good && is_loop(primary) && is_loop(copy);
  }
  for (int& server : map.leaving) words >> server;
  SHOAL_CHECK(is_good && words, Corrupt, "ps: this is no map of servers: ", in_quotes(text));
  return map;
}

}  // namespace shoal::ps
