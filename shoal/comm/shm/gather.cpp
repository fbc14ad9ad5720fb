// SPDX-License-Identifier: Apache-2.0
// One part of each rank, by rank, on root. Parts of P bytes, N ranks:
//
//   way      steps         received by root   how
//   small    1             (N - 1) P          root reads all contributions
//   direct   2             (N - 1) P          each writes its part into root's buffer, or root reads all
//   staged   2 + pieces    (N - 1) P          root reads all pieces
#include "shoal/comm/shm/algorithm.h"

namespace shoal::comm::shm {

static Direct direct(const Shared& shared) {
  return shared.root_out ? Direct::Push : shared.all_in ? Direct::Pull : Direct::No;
}

// Where the elements of this turn of a rank's part go.
static std::byte* place(const Turn& turn, std::byte* out, int rank) {
  return out + (rank * turn.call.count + turn.first) * turn.element;
}

static void read_all(const Turn& turn, std::span<std::byte* const> from) {
  if (!turn.is_root()) return;
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
  std::byte* to = place(turn, turn.out[static_cast<std::size_t>(turn.call.peer)], turn.rank);
  if (turn.is_root()) return turn.keep(turn.my_in(), to, bytes);
  turn.push(turn.call.peer, turn.my_in(), to, bytes);
}

static void fill(const Turn& turn) {
  if (!turn.is_root())
    turn.keep(turn.my_in() + turn.first * turn.element, turn.staging[static_cast<std::size_t>(turn.rank)],
              turn.count * turn.element);
}

const Algorithm kGather = {Op::Gather, false, false, direct, move, fill, nullptr, take, take};

}  // namespace shoal::comm::shm
