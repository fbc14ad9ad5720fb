// SPDX-License-Identifier: Apache-2.0
// Everybody's sum in everybody's buffer. S bytes, N ranks:
//
//   way      steps         received by a rank   how
//   small    1             (N - 1) S            each reduces all contributions by itself
//   direct   2             2 S (N - 1) / N      each reduces its share of all buffers, and writes it to all
//   staged   2 + pieces    2 S (N - 1) / N      the same with pieces
//
// Nobody else touches a rank's share of any buffer, so that one pass over it does all, in place. As many
// bytes are sent. 2 S (N - 1) / N is the least (Patarasuk and Yuan, 2009).
#include "shoal/comm/shm/algorithm.h"

#include <array>

namespace shoal::comm::shm {

static Direct direct(const Shared& shared) { return shared.all_out ? Direct::Pull : Direct::No; }

static void reduce_share(const Turn& turn, std::span<std::byte* const> buffers) {
  const auto [first, count] = share_of(turn.count, turn.element, turn.rank, turn.size);
  std::array<Target, kMaxRanks> to;
  for (int r = 0; r < turn.size; ++r)
    to[static_cast<std::size_t>(r)] = {r, buffers[static_cast<std::size_t>(r)] + first * turn.element};
  turn.reduce_all(buffers, first * turn.element, std::span(to).first(buffers.size()), count);
}

static void move(const Turn& turn, Direct) { reduce_share(turn, turn.out); }
static void combine(const Turn& turn) { reduce_share(turn, turn.staging); }

static void fill(const Turn& turn) {
  turn.keep(turn.my_in() + turn.first * turn.element, turn.staging[static_cast<std::size_t>(turn.rank)],
            turn.count * turn.element);
}

static void take(const Turn& turn) {
  turn.keep(turn.staging[static_cast<std::size_t>(turn.rank)], turn.my_out() + turn.first * turn.element,
            turn.count * turn.element);
}

static void take_small(const Turn& turn) {
  const Target to[] = {{turn.rank, turn.my_out()}};
  turn.reduce_all(turn.staging, 0, to, turn.count);
}

const Algorithm kAllReduce = {Op::AllReduce, false, false, direct, move, fill, combine, take, take_small};

}  // namespace shoal::comm::shm
