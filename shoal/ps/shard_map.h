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
  static constexpr int kNone = -1;  // no loop, or no server
  struct Part {                     // who has its rows
    int primary = kNone;            // the loop that is asked; none: its rows are lost
    int copy = kNone;               // that has all that the primary has answered
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::uint32_t number = 0;     // grows with each change; 0: there is no map, part i is on loop i
  std::uint32_t copies = 2;     // on so many servers each row is wanted
  std::vector<Endpoint> loops;  // one that has gone has port 0
  std::vector<int> servers;     // of the loops; none: the place of a loop is free
  std::vector<Part> parts;      // of the keys
  std::vector<int>
      leaving;  // servers that are to have no part, and to end then; their numbers do not come again
  friend bool operator==(const ShardMap&, const ShardMap&) = default;

  int loop_at(const Endpoint& endpoint) const;  // kNone where none is there
  Endpoint endpoint_of(int loop) const;         // of port 0 where it has gone, or is none
  // Of kNone: kNone.
  int server_of(int loop) const { return loop == kNone ? kNone : servers[static_cast<std::size_t>(loop)]; }
  // The loop that has what all of the part's loops have: its copy, where there is one.
  int tail_of(std::uint32_t part) const;
  int num_of(int loop) const;                 // parts that it has, as primary or copy
  bool is_leaving(int server) const;          // or has left
  bool has(int server) const;                 // loops of it, which may have gone
  bool stays(int loop) const;                 // it is there, and its server is not leaving
  std::vector<int> staying() const;           // servers with such loops
  std::uint32_t num_wanted() const;           // copies of each row that there are servers for
  bool lacks_copy(std::uint32_t part) const;  // there are rows of it, and there is a server for a copy
  int num_lacking() const;                    // parts
  // Two copies of each row are wanted, and there is one of some, whether or not there is a server for another one.
  bool has_single_rows() const;
};

struct FirstMap {                    // what the first map of a job is made of
  std::uint32_t loops_a_server = 1;  // of each server, the same
  std::uint32_t copies = 2;          // of each row, counting itself
  std::uint32_t parts = 0;           // 0: one a loop
};
// Of servers with as many loops each, that have as many parts each as can be. Throws InvalidInput where some would
// have none.
ShardMap first_map(std::vector<Endpoint> loops, const FirstMap& first);
// The next one: the loop has gone, and copies are asked in its place.
ShardMap without(const ShardMap& map, int loop);

// A server is there with these loops and no rows; what the map has of an earlier one of its number has gone. One that
// is to leave comes in with no loop that the map has not, and is out where none of them has a part.
ShardMap with_server(const ShardMap& map, int server, const std::vector<Endpoint>& loops);
// A server is to leave. Throws InvalidInput where there is no such server, or no other that stays.
ShardMap with_leaving(const ShardMap& map, int server);
ShardMap with_part(const ShardMap& map, std::uint32_t part, const ShardMap::Part& becomes);
// Who is to be given the rows of a part without a copy: of the loops of other servers one that has fewest parts;
// kNone where there is none. `fair`: only one that has fewer than each had if all loops were there.
int copy_for(const ShardMap& map, std::uint32_t part, bool fair);

std::string to_text(const ShardMap& map);       // as the store has it
ShardMap map_from_text(std::string_view text);  // throws Corrupt

}  // namespace shoal::ps
