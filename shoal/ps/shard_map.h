// SPDX-License-Identifier: Apache-2.0
// Who has what of all tables: their keys are in parts, by hash, and each part is on two loops of different servers
// while there are two. What a map says is decided here; that there is one of each number is map_keeper.h's.
//
//   map 1   part 0: loop 0, copy 1    part 1: loop 1, copy 0
//   map 2   part 0: loop 0            part 1: loop 0            loop 1 has gone
//   map 3                                                       its server is there again, as another process
//   map 4   part 0: loop 0, copy 1    part 1: loop 0            that has been given the rows of part 0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::ps {

// Where a loop listens.
struct Endpoint {
  std::string address;     // of an interface
  std::uint16_t port = 0;  // which the system chose
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// Of one moment; parts in the order of their numbers.
struct ShardMap {
  static constexpr int kNone = -1;  // no loop
  struct Part {                     // who has its rows
    int primary = kNone;            // the loop that is asked; none: its rows are lost
    int copy = kNone;               // that has all that the primary has answered
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::uint32_t number = 0;     // grows with each change; 0: there is no map, part i is on loop i
  std::vector<Endpoint> loops;  // one that has gone has port 0
  std::vector<int> servers;     // of the loops
  std::vector<Part> parts;      // of the keys
  friend bool operator==(const ShardMap&, const ShardMap&) = default;

  int loop_at(const Endpoint& endpoint) const;  // kNone where none is there
  int num_without_copy() const;                 // parts
  int num_of(int loop) const;                   // parts that it has, as primary or copy
};

// Of servers with so many loops each, which have a part a loop; the copy is on the next server.
ShardMap first_map(std::vector<Endpoint> loops, std::uint32_t loops_a_server);
// The next one: the loop has gone, and copies are asked in its place.
ShardMap without(const ShardMap& map, int loop);

// A server is there with these loops and no rows; what the map has of an earlier one of its number has gone.
ShardMap with_server(const ShardMap& map, int server, const std::vector<Endpoint>& loops);
ShardMap with_copy(const ShardMap& map, std::uint32_t part, int loop);
// Who is to be given the rows of a part without a copy: of the loops of other servers one that has fewest parts;
// kNone where there is none. `fair`: only one that has fewer than each had if all loops were there.
int copy_for(const ShardMap& map, std::uint32_t part, bool fair);

std::string to_text(const ShardMap& map);       // as the store has it
ShardMap map_from_text(std::string_view text);  // throws Corrupt

}  // namespace shoal::ps
