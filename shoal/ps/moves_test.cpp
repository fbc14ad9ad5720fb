// SPDX-License-Identifier: Apache-2.0
// What maps say, and what moves make of them.
#include "shoal/ps/moves.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "shoal/base/error_test.h"
#include "shoal/base/text.h"

using namespace shoal;
using namespace shoal::ps;

static std::vector<Endpoint> loops_of(int first, int count) {
  std::vector<Endpoint> loops;
  for (int i = 0; i < count; ++i) loops.push_back({"127.0.0.1", static_cast<std::uint16_t>(first + i)});
  return loops;
}

// "0:1 1:0 2": parts with their primary and copy; "-": lost.
static std::string picture(const ShardMap& map) {
  std::string text;
  for (const auto& [primary, copy] : map.parts) {
    if (!text.empty()) text += ' ';
    text += primary == ShardMap::kNone ? "-" : std::to_string(primary);
    if (copy != ShardMap::kNone) text += concat(':', copy);
  }
  return text;
}

static std::string pictures_until_even(ShardMap map) {
  std::string text = picture(map);
  while (const auto move = next_move(map)) {
    map = with_part(map, move->part, move->becomes);
    text += concat("\n", picture(map));
  }
  return text;
}

TEST_CASE("a map's text is read back, and says who is asked when a loop has gone") {
  const ShardMap map = first_map(loops_of(1, 4), {.loops_a_server = 2});
  CHECK(picture(map) == "0:2 1:3 2:0 3:1");
  CHECK(map_from_text(to_text(map)) == map);
  const ShardMap next = without(map, 2);
  CHECK(next.number == 2);
  CHECK(picture(next) == "0 1:3 0 3:1");
  CHECK(next.num_of(0) == 2);
  CHECK(copy_for(next, 0, true) == ShardMap::kNone);  // who has what it had
  CHECK(copy_for(next, 0, false) == 3);
  CHECK(copy_for(next, 1, true) == ShardMap::kNone);  // nobody of another server
  CHECK(next.num_lacking() == 2);
  const ShardMap again = with_server(next, 1, {{"127.0.0.1", 9}, {"127.0.0.1", 4}});
  CHECK(again.number == 3);
  CHECK(again.loops ==
        std::vector<Endpoint>{{"127.0.0.1", 1}, {"127.0.0.1", 2}, {"127.0.0.1", 9}, {"127.0.0.1", 4}});
  CHECK(again.parts == next.parts);
  CHECK(copy_for(again, 0, true) == 2);
  CHECK(map_from_text(to_text(again)) == again);
  CHECK(map_from_text(to_text(next)) == next);
  CHECK(without(next, 0).parts[0] == ShardMap::Part());
  const ShardMap leaves = with_leaving(map, 1);
  CHECK(map_from_text(to_text(leaves)) == leaves);
  for (const char* text : {"", "1 2", "1 2 1 1 0 a 4 0", "1 2 1 1 0 a 4 0 7 0", "1 2 99999999 1 0",
                           "1 3 1 1 0 a 4 0 0 -1", "1 2 1 1 1 a 4 0 0 -1"})
    CHECK(error_of([&] { map_from_text(text); }).starts_with("ps: this is no map of servers: "));
  CHECK(
      error_of([] { first_map(loops_of(1, 4), {.loops_a_server = 2, .parts = 3}); }) ==
      "ps: keys are in 3 parts, and servers have 4 loops, of which some would have none. Remedy: ps.parts=4 "
      "or more");
}

TEST_CASE("a server that comes is given copies first, then turns make it the primary of half of the parts") {
  ShardMap map = with_server(first_map(loops_of(1, 1), {.parts = 4}), 1, loops_of(2, 1));
  CHECK(!next_move(map));  // copies are lacking
  CHECK(map.num_lacking() == 4);
  for (std::uint32_t part = 0; part < 4; ++part)
    map = with_part(map, part, {.primary = 0, .copy = copy_for(map, part, true)});
  CHECK(pictures_until_even(map) == R"(0:1 0:1 0:1 0:1
1:0 0:1 0:1 0:1
1:0 1:0 0:1 0:1)");
}

TEST_CASE("a third server is given a third, by the copies, and one that leaves gives all that it has") {
  const ShardMap two = first_map(loops_of(1, 2), {.parts = 6});
  CHECK(picture(two) == "0:1 1:0 0:1 1:0 0:1 1:0");
  const ShardMap three = with_server(two, 2, loops_of(3, 1));
  CHECK(pictures_until_even(three) == R"(0:1 1:0 0:1 1:0 0:1 1:0
0:2 1:0 0:1 1:0 0:1 1:0
0:2 1:2 0:1 1:0 0:1 1:0
0:2 1:2 0:2 1:0 0:1 1:0
0:2 1:2 0:2 1:2 0:1 1:0
2:0 1:2 0:2 1:2 0:1 1:0
2:0 2:1 0:2 1:2 0:1 1:0)");
  CHECK(pictures_until_even(with_leaving(balanced(three), 0)) == R"(2:0 2:1 0:2 1:2 0:1 1:0
2:1 2:1 0:2 1:2 0:1 1:0
2:1 2:1 2:1 1:2 0:1 1:0
2:1 2:1 2:1 1:2 1:2 1:0
2:1 2:1 2:1 1:2 1:2 1:2)");
}

TEST_CASE("of two servers one leaves: the other has all rows, and no copies") {
  const ShardMap map = with_leaving(first_map(loops_of(1, 2), {.parts = 3}), 0);
  CHECK(pictures_until_even(map) == R"(0:1 1:0 0:1
1:0 1:0 0:1
1 1:0 0:1
1 1 0:1
1 1 1:0
1 1 1)");
}

TEST_CASE("with one copy wanted a part goes from loop to loop") {
  const ShardMap map = with_server(first_map(loops_of(1, 1), {.copies = 1, .parts = 4}), 1, loops_of(2, 1));
  CHECK(map.num_lacking() == 0);
  CHECK(pictures_until_even(map) == R"(0 0 0 0
1 0 0 0
1 1 0 0)");
  CHECK(receiver_of(map, *next_move(map)) == 1);
  CHECK(doer_of(map, *next_move(map)) == 0);
}

TEST_CASE("what cannot leave is refused by name") {
  const ShardMap map = first_map(loops_of(1, 2), {});
  CHECK(error_of([&] { with_leaving(map, 7); }) ==
        "ps: there is no server 7 that could leave; there is 0, 1");
  const ShardMap leaves = with_leaving(map, 1);
  CHECK(error_of([&] { with_leaving(leaves, 1); }) ==
        "ps: there is no server 1 that could leave; there is 0");
  CHECK(error_of([&] { with_leaving(leaves, 0); }) ==
        "ps: server 0 is the last one, and rows have to be somewhere. Remedy: shoal ps add first");
}

TEST_CASE("a server that has left is out of the map, its place is another's, and it does not come again") {
  ShardMap map = balanced(with_leaving(first_map(loops_of(1, 3), {.parts = 6}), 1));
  CHECK(map.num_of(1) == 0);
  map = with_server(map, 1, loops_of(2, 1));
  CHECK(!map.has(1));
  CHECK(map_from_text(to_text(map)) == map);
  const ShardMap same = with_server(map, 1, loops_of(9, 1));
  CHECK(same.loops == map.loops);
  const ShardMap next = with_server(map, 3, loops_of(7, 1));
  CHECK(next.loops[1] == Endpoint{"127.0.0.1", 7});
  CHECK(next.servers == std::vector<int>{0, 3, 2});
}

// Where nothing holds them up all have as many, and copies are on other servers.
static void check_even(const ShardMap& map) {
  std::vector<int> parts(map.loops.size()), primaries(map.loops.size());
  bool is_whole = true;
  for (const auto& [primary, copy] : map.parts) {
    is_whole = is_whole && primary != ShardMap::kNone;
    if (primary == ShardMap::kNone) continue;
    REQUIRE(map.stays(primary));
    REQUIRE((copy == ShardMap::kNone) == (map.num_wanted() < 2));
    ++parts[static_cast<std::size_t>(primary)], ++primaries[static_cast<std::size_t>(primary)];
    if (copy == ShardMap::kNone) continue;
    REQUIRE(map.stays(copy));
    REQUIRE(map.server_of(copy) != map.server_of(primary));
    ++parts[static_cast<std::size_t>(copy)];
  }
  std::vector<int> some, leads;
  for (std::size_t loop = 0; loop < map.loops.size(); ++loop) {
    if (!map.stays(static_cast<int>(loop))) continue;
    some.push_back(parts[loop]);
    leads.push_back(primaries[loop]);
  }
  CAPTURE(to_text(map));
  REQUIRE(std::ranges::max(some) - std::ranges::min(some) <= 1);
  REQUIRE(std::ranges::max(leads) - std::ranges::min(leads) <= 1);
}

static std::vector<Endpoint> there(const ShardMap& map, int server) {
  std::vector<Endpoint> loops;
  for (std::size_t loop = 0; loop < map.loops.size(); ++loop)
    if (map.servers[loop] == server && map.loops[loop].port != 0) loops.push_back(map.loops[loop]);
  return loops;
}

TEST_CASE(
    "whatever servers do, after finitely many moves all loops have as many parts, and none is lost by one") {
  std::mt19937 engine(1);
  const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
  int longest = 0;
  for (int i = 0; i < 600; ++i) {
    CAPTURE(i);
    const std::uint32_t loops = 1 + random() % 3, copies = 1 + random() % 2;
    const std::uint32_t servers = 1 + random() % 5;
    const std::uint32_t parts = servers * loops + random() % 30;
    int port = 1, numbers = static_cast<int>(servers);
    const auto some = [&] {
      return loops_of(std::exchange(port, port + static_cast<int>(loops)), static_cast<int>(loops));
    };
    std::vector<Endpoint> all = loops_of(port, static_cast<int>(servers * loops));
    port += static_cast<int>(servers * loops);
    ShardMap map = first_map(all, {.loops_a_server = loops, .copies = copies, .parts = parts});
    REQUIRE(num_moves(map) == 0);
    check_even(map);
    for (int turn = 0; turn < 12; ++turn) {
      const auto staying = map.staying();
      const int which = staying[random() % staying.size()];
      switch (random() % 4) {
        case 0: map = with_server(map, numbers++, some()); break;
        case 1:
          if (staying.size() > 1) map = with_leaving(map, which);
          break;
        case 2:  // it ends, and comes again
          if (map.num_wanted() < 2 || map.num_lacking() > 0) break;
          for (std::size_t loop = 0; loop < map.loops.size(); ++loop)
            if (map.servers[loop] == which) map = without(map, static_cast<int>(loop));
          if (random() % 2 == 0) map = with_server(map, which, some());
          break;
        default: break;
      }
      for (const auto& part : map.parts) REQUIRE(part.primary != ShardMap::kNone);
      int moves = 0;
      const int most =
          random() % 3 == 0 ? 1 << 20 : static_cast<int>(random() % 20);  // before something befalls it
      std::set<std::string> seen;
      while (moves < most) {
        std::optional<Move> move;
        for (std::uint32_t part = 0; part < map.parts.size() && !move; ++part)
          if (map.lacks_copy(part)) move = Move{part, {map.parts[part].primary, copy_for(map, part, false)}};
        if (!move) move = next_move(map);
        if (!move) break;
        REQUIRE(doer_of(map, *move) != ShardMap::kNone);
        map = with_part(map, move->part, move->becomes);
        REQUIRE(seen.insert(picture(map)).second);  // it does not go in circles
        REQUIRE(++moves < 4 * static_cast<int>(map.parts.size() * map.loops.size()) + 10);
      }
      longest = std::max(longest, moves);
      for (const int server : std::vector(map.leaving)) map = with_server(map, server, there(map, server));
      if (map.num_lacking() == 0 && !next_move(map)) check_even(map);
    }
    check_even(balanced(map));
  }
  CHECK(longest > 10);
}
