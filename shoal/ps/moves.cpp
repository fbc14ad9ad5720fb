// SPDX-License-Identifier: Apache-2.0
// Parts on servers that leave go first; then loops are to have as many parts, to within one; then as many of them as
// primaries. With as many loops a server this always ends within one: where a loop X has two more than B and can
// give B none, all its parts are with B's server; were that so of X's whole server, B's would have as many as that.
// Else a loop of X's server gives B one, and X gives that loop one.
//
// Primaries: parts are arrows from primary to copy, and turning round all of a path from A to D gives D one and takes
// one from A. Of the shortest such path with A two above D the last arrow is turned; what is left is a shorter one.
#include "shoal/ps/moves.h"

#include <algorithm>
#include <tuple>

namespace shoal::ps {

static constexpr int kNone = ShardMap::kNone;

int receiver_of(const ShardMap& map, const Move& move) {
  const ShardMap::Part& before = map.parts.at(move.part);
  for (const int loop : {move.becomes.primary, move.becomes.copy})
    if (loop != kNone && loop != before.primary && loop != before.copy) return loop;
  return kNone;
}

int doer_of(const ShardMap& map, const Move& move) {
  return receiver_of(map, move) == kNone ? map.parts.at(move.part).primary : map.tail_of(move.part);
}

namespace {

// What a loop has.
struct Load {
  int parts = 0, primaries = 0;
  auto operator<=>(const Load&) const = default;
};

class Balance {
 public:
  explicit Balance(const ShardMap& map) : map_(map), loads_(map.loops.size()) {
    for (const ShardMap::Part& part : map.parts) {
      if (part.primary != kNone) ++load(part.primary).parts, ++load(part.primary).primaries;
      if (part.copy != kNone) ++load(part.copy).parts;
    }
    for (int loop = 0; loop < static_cast<int>(map.loops.size()); ++loop)
      if (map.stays(loop)) staying_.push_back(loop);
  }

  std::optional<Move> away_from_leaving() const;
  std::optional<Move> even() const;
  std::optional<Move> turn() const;

 private:
  Load& load(int loop) { return loads_[static_cast<std::size_t>(loop)]; }
  const Load& load(int loop) const { return loads_[static_cast<std::size_t>(loop)]; }
  static int other_of(const ShardMap::Part& part, int loop) {
    return part.primary == loop ? part.copy : part.primary;
  }
  // `to` in place of `loop`; who stays is the primary.
  static ShardMap::Part replaced(const ShardMap::Part& part, int loop, int to) {
    const int other = other_of(part, loop);
    return other == kNone ? ShardMap::Part{.primary = to} : ShardMap::Part{.primary = other, .copy = to};
  }
  bool may_have(const ShardMap::Part& part, int loop, int to) const {  // in place of `loop`
    const int other = other_of(part, loop);
    return to != loop && to != other && (other == kNone || map_.server_of(to) != map_.server_of(other));
  }
  std::optional<Move> best_given(int gap) const;

  const ShardMap& map_;
  std::vector<Load> loads_;   // by loop
  std::vector<int> staying_;  // loops
};

std::optional<Move> Balance::away_from_leaving() const {
  for (std::uint32_t number = 0; number < map_.parts.size(); ++number) {
    const ShardMap::Part& part = map_.parts[number];
    if (part.primary == kNone) continue;
    const bool primary_stays = map_.stays(part.primary), copy_stays = map_.stays(part.copy);
    if (primary_stays && (copy_stays || part.copy == kNone)) continue;
    if (map_.num_wanted() < 2 && part.copy != kNone) {
      if (primary_stays) return Move{number, {.primary = part.primary}};
      if (copy_stays) return Move{number, {.primary = part.copy, .copy = part.primary}};
    }
    const int leaves = primary_stays ? part.copy : part.primary;
    int best = kNone;
    for (const int to : staying_)
      if (may_have(part, leaves, to) && (best == kNone || load(to) < load(best))) best = to;
    if (best != kNone) return Move{number, replaced(part, leaves, best)};
  }
  return {};
}

// From the loop with most parts to the one with fewest, with `gap` or more in between; of its parts one that leaves
// primaries most even.
std::optional<Move> Balance::best_given(int gap) const {
  std::optional<Move> best;
  std::tuple<int, int> rank;  // the least is best
  for (std::uint32_t number = 0; number < map_.parts.size(); ++number) {
    const ShardMap::Part& part = map_.parts[number];
    for (const int from : {part.primary, part.copy}) {
      if (from == kNone || part.primary == kNone) continue;
      for (const int to : staying_) {
        const int between = load(from).parts - load(to).parts;
        if (between < gap || !may_have(part, from, to)) continue;
        const bool leads_on = part.copy != kNone && from == part.primary;
        const int becomes_primary = leads_on ? part.copy : part.copy == kNone ? to : kNone;
        const int uneven =
            becomes_primary == kNone ? 0 : load(becomes_primary).primaries + 1 - load(from).primaries;
        const std::tuple now = {-between, uneven};
        if (best && rank <= now) continue;
        best = Move{number, replaced(part, from, to)};
        rank = now;
      }
    }
  }
  return best;
}

std::optional<Move> Balance::even() const {
  if (auto direct = best_given(2)) return direct;
  // X has two more than B, and another loop of X's server one more: that gives one, and is given one then.
  for (std::uint32_t number = 0; number < map_.parts.size(); ++number) {
    const ShardMap::Part& part = map_.parts[number];
    for (const int from : {part.primary, part.copy}) {
      if (from == kNone || part.primary == kNone) continue;
      for (const int to : staying_) {
        if (load(from).parts != load(to).parts + 1 || !may_have(part, from, to)) continue;
        const bool is_of_one = std::ranges::any_of(staying_, [&](int most) {
          return map_.server_of(most) == map_.server_of(from) && load(most).parts >= load(to).parts + 2;
        });
        if (is_of_one) return Move{number, replaced(part, from, to)};
      }
    }
  }
  return {};
}

std::optional<Move> Balance::turn() const {
  std::size_t shortest = loads_.size() + 1;
  std::optional<Move> best;
  for (const int begin : staying_) {
    std::vector<int> from(loads_.size(), kNone);  // the part whose turning gives the loop one
    std::vector<std::pair<int, std::size_t>> reached = {{begin, 0}};
    for (std::size_t i = 0; i < reached.size(); ++i) {
      const auto [at, steps] = reached[i];
      if (steps + 1 >= shortest) break;
      for (std::uint32_t number = 0; number < map_.parts.size(); ++number) {
        const auto [primary, copy] = map_.parts[number];
        if (primary != at || copy == kNone || copy == begin || from[static_cast<std::size_t>(copy)] != kNone)
          continue;
        from[static_cast<std::size_t>(copy)] = static_cast<int>(number);
        reached.emplace_back(copy, steps + 1);
        if (load(begin).primaries < load(copy).primaries + 2 || steps + 1 >= shortest) continue;
        shortest = steps + 1;
        best = Move{number, {.primary = copy, .copy = primary}};
      }
    }
  }
  return best;
}

}  // namespace

std::optional<Move> next_move(const ShardMap& map) {
  if (map.number == 0 || map.num_lacking() > 0) return {};
  const Balance balance(map);
  if (auto move = balance.away_from_leaving()) return move;
  if (auto move = balance.even()) return move;
  return balance.turn();
}

// Gives each map on the way, until it is as it is to be.
template <class Each>
static ShardMap played(ShardMap map, const Each& each) {
  for (;;) {
    std::optional<Move> move;
    for (std::uint32_t part = 0; part < map.parts.size() && !move; ++part)
      if (map.lacks_copy(part)) move = Move{part, {map.parts[part].primary, copy_for(map, part, false)}};
    if (!move) move = next_move(map);
    if (!move) return map;
    map = with_part(map, move->part, move->becomes);
    each();
  }
}

ShardMap balanced(ShardMap map) {
  return played(std::move(map), [] {});
}

int num_moves(const ShardMap& map) {
  int moves = 0;
  played(map, [&] { ++moves; });
  return moves;
}

}  // namespace shoal::ps
