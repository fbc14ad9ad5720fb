// SPDX-License-Identifier: Apache-2.0
// Everybody's sum in root's buffer; others' buffers stay. S bytes, N ranks:
//
//   way      steps         received by root         received by another   how
//   small    1             (N - 1) S                0                     root reduces all contributions
//   direct   2             2 S (N - 1) / N          S (N - 1) / N         each its share, into root's buffer
//   staged   2 + pieces    2 S (N - 1) / N          S (N - 1) / N         the same with pieces
//
// More bytes than root alone would need, (N - 1) S, but all ranks work on it.
#include "shoal/comm/shm/algorithm.h"

namespace shoal::comm::shm {

static Direct direct(const Shared& shared) { return shared.all_out ? Direct::Pull : Direct::No; }

static void reduce_share(const Turn& turn, std::span<std::byte* const> buffers) {
  const auto [first, count] = share_of(turn.count, turn.element, turn.rank, turn.size);
  const int root = turn.call.peer;
  const Target to[] = {{root, buffers[static_cast<std::size_t>(root)] + first * turn.element}};
  turn.reduce_all(buffers, first * turn.element, to, count);
}

static void move(const Turn& turn, Direct) { reduce_share(turn, turn.out); }
static void combine(const Turn& turn) { reduce_share(turn, turn.staging); }

static void fill(const Turn& turn) {
  turn.keep(turn.my_in() + turn.first * turn.element, turn.staging[static_cast<std::size_t>(turn.rank)],
            turn.count * turn.element);
}

static void take(const Turn& turn) {
  if (turn.is_root())
    turn.keep(turn.staging[static_cast<std::size_t>(turn.rank)], turn.my_out() + turn.first * turn.element,
              turn.count * turn.element);
}

static void take_small(const Turn& turn) {
  const Target to[] = {{turn.rank, turn.my_out()}};
  if (turn.is_root()) turn.reduce_all(turn.staging, 0, to, turn.count);
}

const Algorithm kReduce = {Op::Reduce, false, false, direct, move, fill, combine, take, take_small};

}  // namespace shoal::comm::shm
