// SPDX-License-Identifier: Apache-2.0
// Part q of rank p on rank q, at p. Parts of P bytes, N ranks (uneven: what is sent, what is taken):
//
//   way      steps         received by a rank   how
//   small    1             (N - 1) P            each reads its part of all contributions
//   direct   2             (N - 1) P            each reads its part of all buffers, or writes its parts
//   staged   2 + pieces    (N - 1) P            the same with pieces
#include "shoal/comm/shm/algorithm.h"

#include <algorithm>
#include <numeric>

namespace shoal::comm::shm {

static Direct direct(const Shared& shared) {
  return shared.all_in ? Direct::Pull : shared.all_out ? Direct::Push : Direct::No;
}

static std::int64_t before(const std::int64_t* counts, int rank) {
  return std::accumulate(counts, counts + rank, std::int64_t{0});
}

// Bytes of this turn from one rank to another, and where they are in the buffers. What a rank takes is known
// when all have come, as is what others send.
static std::int64_t bytes(const Turn& turn, int from, int to) {
  const std::int64_t sent = turn.in_counts[static_cast<std::size_t>(from)][to];
  return std::clamp<std::int64_t>(sent - turn.first, 0, turn.count) * turn.element;
}
static std::int64_t in_offset(const Turn& turn, int from, int to) {
  return (before(turn.in_counts[static_cast<std::size_t>(from)], to) + turn.first) * turn.element;
}
static std::int64_t out_offset(const Turn& turn, int from, int to) {
  return (before(turn.out_counts[static_cast<std::size_t>(to)], from) + turn.first) * turn.element;
}
// In staging parts are `stride` apart; in a slot, where that is 0, as in the buffer.
static std::int64_t staging_offset(const Turn& turn, int from, int to) {
  return turn.stride > 0 ? to * turn.stride : in_offset(turn, from, to);
}

static void keep_own(const Turn& turn) {
  const int r = turn.rank;
  turn.keep(turn.my_in() + in_offset(turn, r, r), turn.my_out() + out_offset(turn, r, r), bytes(turn, r, r));
}

static void fill(const Turn& turn) {
  for (int r = 0; r < turn.size; ++r)
    if (r != turn.rank)
      turn.keep(turn.my_in() + in_offset(turn, turn.rank, r),
                turn.staging[static_cast<std::size_t>(turn.rank)] + staging_offset(turn, turn.rank, r),
                bytes(turn, turn.rank, r));
}

static void take(const Turn& turn) {
  for (int i = 1; i < turn.size; ++i) {
    const int r = turn.after(i);
    turn.pull(r, turn.staging[static_cast<std::size_t>(r)] + staging_offset(turn, r, turn.rank),
              turn.my_out() + out_offset(turn, r, turn.rank), bytes(turn, r, turn.rank));
  }
  keep_own(turn);
}

static void move(const Turn& turn, Direct way) {
  for (int i = 1; i < turn.size; ++i) {
    const int r = turn.after(i);
    if (way == Direct::Pull) {
      turn.pull(r, turn.in[static_cast<std::size_t>(r)] + in_offset(turn, r, turn.rank),
                turn.my_out() + out_offset(turn, r, turn.rank), bytes(turn, r, turn.rank));
    } else {
      turn.push(r, turn.my_in() + in_offset(turn, turn.rank, r),
                turn.out[static_cast<std::size_t>(r)] + out_offset(turn, turn.rank, r),
                bytes(turn, turn.rank, r));
    }
  }
  keep_own(turn);
}

const Algorithm kAllToAll = {Op::AllToAll, true, false, direct, move, fill, nullptr, take, take};

}  // namespace shoal::comm::shm
