// SPDX-License-Identifier: Apache-2.0
// How a loop gives parts to others: copies that there are too few of, and the moves of moves.h.
//
//   primary A ── changes ─► copy C ~~ state, rows of each shard, changes in between ~~► B     A, C answer as ever
//   primary A ── changes ─► copy C ── changes ─► B       C tells A of no change that B has not done
//                                                        the map says {C, B}, or {A, B}: what was answered is there
//
// A chain grows at its tail (van Renesse and Schneider, OSDI 2004, section 3). Whoever of the three ends before the
// map has changed leaves it as it was; who is asked by an older map finds nobody who would take his changes.
#include <algorithm>
#include <chrono>
#include <utility>

#include "shoal/ps/loop.h"

namespace shoal::ps {

using std::chrono_literals::operator""ms;

static constexpr std::size_t kMostPassed = 8;        // frames of rows on their way
static constexpr auto kBetweenLooks = 50ms;          // where nothing can be done yet
static constexpr std::chrono::seconds kPatience{3};  // with a server that is to come again

bool Loop::has_to_tend() const {
  for (const auto& [number, part] : parts_)
    if (part->leads && map_.lacks_copy(number)) return true;
  return next_task(false).has_value();
}

// What this loop has to see to; copies first.
std::optional<Move> Loop::next_task(bool fair) const {
  const int here = map_.loop_at(endpoint_);
  if (here == ShardMap::kNone) return {};
  for (const auto& [number, part] : parts_) {
    if (!part->leads || !map_.lacks_copy(number)) continue;
    const int loop = copy_for(map_, number, fair);
    if (loop != ShardMap::kNone) return Move{number, {.primary = here, .copy = loop}};
  }
  const auto move = next_move(map_);
  return move && doer_of(map_, *move) == here ? move : std::nullopt;
}

asio::awaitable<void> Loop::tend() {
  auto since = std::chrono::steady_clock::now();
  while (has_to_tend()) {
    const bool is_fair = std::chrono::steady_clock::now() - since < kPatience;
    const std::uint32_t seen = map_.number;
    if (const auto move = next_task(is_fair)) {
      try {
        co_await carry_out(*move);
      } catch (const std::exception&) {  // no memory for its frames, or the job's store has gone
        if (const auto at = parts_.find(move->part); at != parts_.end()) {
          at->second->holds = false;
          if (at->second->gives) leave(*at->second);
        }
        woken_.cancel();
      }
      if (map_.number != seen) continue;
    }
    asio::steady_timer later(context_, kBetweenLooks);
    co_await until_changed(later);
    try {
      adopt(options_.maps->find());
    } catch (const std::exception&) {
      break;
    }
    if (map_.num_lacking() == 0) since = std::chrono::steady_clock::now();
  }
  tends_ = false;
}

asio::awaitable<void> Loop::carry_out(Move move) {
  const auto at = parts_.find(move.part);
  if (at == parts_.end()) co_return;
  const PartPtr part = at->second;
  const int to = receiver_of(map_, move);
  if (to != ShardMap::kNone) {
    if (part->has_link || part->next != ShardMap::kNone) co_return;  // one that ends
    part->gives = part->has_link = true;
    part->next = to;
    part->to = map_.endpoint_of(to);
    part->base = part->history;
    asio::co_spawn(context_, keep_link(move.part, part), asio::detached);
    co_await give_rows(move, part);
  } else if (move.becomes.copy != ShardMap::kNone) {
    co_await turn(move, part);
  } else {
    put(move);
  }
}

// Until the map says that the receiver has them, or it is not to have them any more.
asio::awaitable<void> Loop::give_rows(Move move, PartPtr part) {
  const wire::Head head = {.part = static_cast<std::uint16_t>(move.part), .epoch = options_.epoch};
  const int to = part->next;
  const Answers& from = *part->answers;
  bool has_all = false;
  for (int begun = 0; !has_all; ++begun) {
    part->waits = begun > 0;  // or who changes whole tables over and over would have it begin anew for ever
    while (gives_to(*part, to) && !from.is_quiet()) co_await until_changed(woken_);
    if (!gives_to(*part, to)) co_return;
    const std::uint64_t whole = from.num_whole();
    pass(*part, from.state(head));
    for (const auto& [table, shard] : from.shards()) {
      for (Bytes& frame : from.rows(head, table, shard)) pass(*part, std::move(frame));
      while (gives_to(*part, to) && part->waiting.size() > kMostPassed) co_await until_changed(copied_);
      if (!gives_to(*part, to)) co_return;
      if (whole != from.num_whole()) break;
    }
    has_all = whole == from.num_whole();
    part->waits = part->waits || has_all;
    const std::uint64_t all = part->passed;
    while (gives_to(*part, to) && part->there < all) co_await until_changed(copied_);
    if (!gives_to(*part, to)) co_return;
  }
  // All that was answered is there. Others may change the map meanwhile, so that this is not what it wants next.
  while (gives_to(*part, to)) {
    const ShardMap::Part now = map_.parts[move.part];
    const bool is_copy = part->leads && now.copy == ShardMap::kNone && map_.lacks_copy(move.part);
    if (is_copy)
      move.becomes = {.primary = now.primary, .copy = to};
    else if (next_move(map_) != move)
      leave(*part);
    if (gives_to(*part, to)) put(move);
  }
}

// The copy becomes the primary: at a moment when both are the same.
asio::awaitable<void> Loop::turn(Move move, PartPtr part) {
  const std::uint32_t seen = map_.number;
  part->holds = true;
  while (map_.number == seen && part->there < part->passed) co_await until_changed(copied_);
  if (map_.number == seen) put(move);
  part->holds = false;
  woken_.cancel();
}

// The map says so, where nobody has changed it meanwhile.
void Loop::put(const Move& move) {
  const ShardMap next = with_part(map_, move.part, move.becomes);
  const ShardMap now = options_.maps->replace(map_, next);
  if (options_.all_copied && now == next && map_.has_single_rows() && !next.has_single_rows())
    options_.all_copied();
  adopt(now);
}

}  // namespace shoal::ps
