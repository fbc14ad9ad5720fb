// SPDX-License-Identifier: Apache-2.0
// Part r of root's buffer on rank r. Parts of P bytes:
//
//   way      steps         received by each but root   how
//   small    1             P                           each reads its part of root's contribution
//   direct   2             P                           each reads its part of root's buffer
//   staged   2 + pieces    P                           the same with pieces
#include "shoal/comm/shm/algorithm.h"

namespace shoal::comm::shm {

static Direct direct(const Shared& shared) { return shared.root_in ? Direct::Pull : Direct::No; }

static void fill(const Turn& turn) {
  if (!turn.is_root()) return;
  for (int r = 0; r < turn.size; ++r)
    if (r != turn.rank)
      turn.keep(turn.my_in() + (r * turn.call.count + turn.first) * turn.element,
                turn.staging[static_cast<std::size_t>(turn.rank)] + r * turn.stride,
                turn.count * turn.element);
}

static void read(const Turn& turn, const std::byte* from) {
  std::byte* to = turn.my_out() + turn.first * turn.element;
  const std::int64_t bytes = turn.count * turn.element;
  if (turn.is_root())
    return turn.keep(turn.my_in() + (turn.rank * turn.call.count + turn.first) * turn.element, to, bytes);
  turn.pull(turn.call.peer, from, to, bytes);
}

static void take(const Turn& turn) {
  read(turn, turn.staging[static_cast<std::size_t>(turn.call.peer)] + turn.rank * turn.stride);
}
static void move(const Turn& turn, Direct) {
  read(turn, turn.in[static_cast<std::size_t>(turn.call.peer)] + turn.rank * turn.call.count * turn.element);
}

const Algorithm kScatter = {Op::Scatter, true, true, direct, move, fill, nullptr, take, take};

}  // namespace shoal::comm::shm
