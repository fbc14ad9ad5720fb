// SPDX-License-Identifier: Apache-2.0
// Which parts of the keys go to other loops, so that all have as much to do: decided by the map alone, one move after
// the other, so that whoever looks at a map knows the same one.
//
//   loops 0 and 1 of server 0        a part of 0 (primary) and 2 (copy), and loop 3 has come
//
//   give    0 -> 2        0 -> 2 ~> 3       2 -> 3      the copy, which has all, gives the rows; the primary goes
//   give    0 -> 2        0 -> 2 ~> 3       0 -> 3      the same, and the copy itself goes
//   turn    0 -> 2        2 -> 0                        no rows go anywhere
//   drop    0 -> 2        0                             there is no server for a copy any more
//
// So a row is never on fewer servers than before, but for the last.
#pragma once

#include <optional>

#include "shoal/ps/shard_map.h"

namespace shoal::ps {

struct Move {
  std::uint32_t part = 0;
  ShardMap::Part becomes;
  friend bool operator==(const Move&, const Move&) = default;
};

// The loop that is to be given rows; kNone where they stay where they are.
int receiver_of(const ShardMap& map, const Move& move);
// The loop that is to see to it.
int doer_of(const ShardMap& map, const Move& move);

// None where the map is as even as it can be, or a part lacks a copy, which comes first. After finitely many there
// is none: each leaves fewer parts on servers that leave, or makes what loops have more even, or the next one will.
std::optional<Move> next_move(const ShardMap& map);
// After all moves and the copies that it lacks.
ShardMap balanced(ShardMap map);
// How many those are.
int num_moves(const ShardMap& map);

}  // namespace shoal::ps
