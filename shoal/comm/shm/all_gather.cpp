// SPDX-License-Identifier: Apache-2.0
// One part of each rank, by rank, on everybody. Parts of P bytes, N ranks:
//
//   way      steps         received by a rank   how
//   small    1             (N - 1) P            each reads all contributions
//   direct   2             (N - 1) P            each writes its part into all buffers, or reads all parts
//   staged   2 + pieces    (N - 1) P            each reads all pieces
#include <algorithm>

#include "shoal/comm/shm/algorithm.h"

namespace shoal::comm::shm {

static constexpr std::int64_t kCachedBytes = std::int64_t{1} << 18;

static Direct direct(const Shared& shared) {
  return shared.all_out ? Direct::Push : shared.all_in ? Direct::Pull : Direct::No;
}

// Where the elements of this turn of a rank's part go.
static std::byte* place(const Turn& turn, std::byte* out, int rank) {
  return out + (rank * turn.call.count + turn.first) * turn.element;
}

static void read_all(const Turn& turn, std::span<std::byte* const> from) {
  const std::int64_t bytes = turn.count * turn.element;
  for (int i = 1; i < turn.size; ++i) {
    const int r = turn.after(i);
    turn.pull(r, from[static_cast<std::size_t>(r)], place(turn, turn.my_out(), r), bytes);
  }
  turn.keep(turn.my_in() + turn.first * turn.element, place(turn, turn.my_out(), turn.rank), bytes);
}

static void take(const Turn& turn) { read_all(turn, turn.staging); }

static void move(const Turn& turn, Direct way) {
  if (way == Direct::Pull) return read_all(turn, turn.in);
  const std::int64_t bytes = turn.count * turn.element;
  for (std::int64_t at = 0; at < bytes; at += kCachedBytes) {
    const std::int64_t now = std::min(kCachedBytes, bytes - at);
    for (int i = 1; i < turn.size; ++i) {
      const int r = turn.after(i);
      turn.push(r, turn.my_in() + at, place(turn, turn.out[static_cast<std::size_t>(r)], turn.rank) + at,
                now);
    }
    turn.keep(turn.my_in() + at, place(turn, turn.my_out(), turn.rank) + at, now);
  }
}

static void fill(const Turn& turn) {
  turn.keep(turn.my_in() + turn.first * turn.element, turn.staging[static_cast<std::size_t>(turn.rank)],
            turn.count * turn.element);
}

const Algorithm kAllGather = {Op::AllGather, false, false, direct, move, fill, nullptr, take, take};

}  // namespace shoal::comm::shm
