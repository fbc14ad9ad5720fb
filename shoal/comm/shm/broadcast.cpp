// SPDX-License-Identifier: Apache-2.0
// Root's buffer in everybody's. S bytes:
//
//   way      steps         received by each but root   how
//   small    1             S                           each reads root's contribution
//   direct   2             S                           each reads root's buffer
//   staged   2 + pieces    S                           the same with pieces
#include "shoal/comm/shm/algorithm.h"

namespace shoal::comm::shm {

static Direct direct(const Shared& shared) { return shared.root_in ? Direct::Pull : Direct::No; }

static void read(const Turn& turn, const std::byte* from) {
  if (!turn.is_root())
    turn.pull(turn.call.peer, from, turn.my_out() + turn.first * turn.element, turn.count * turn.element);
}

static void move(const Turn& turn, Direct) { read(turn, turn.in[static_cast<std::size_t>(turn.call.peer)]); }
static void take(const Turn& turn) { read(turn, turn.staging[static_cast<std::size_t>(turn.call.peer)]); }

static void fill(const Turn& turn) {
  turn.keep(turn.my_in() + turn.first * turn.element, turn.staging[static_cast<std::size_t>(turn.rank)],
            turn.count * turn.element);
}

const Algorithm kBroadcast = {Op::Broadcast, false, true, direct, move, fill, nullptr, take, take};

}  // namespace shoal::comm::shm
