// SPDX-License-Identifier: Apache-2.0
// The sum of everybody's part r on rank r. Parts of P bytes, N ranks:
//
//   way      steps         received by a rank   how
//   small    1             (N - 1) P            each reduces its part of all contributions
//   direct   2             (N - 1) P            each reduces its part of all buffers
//   staged   2 + pieces    (N - 1) P            the same with pieces
#include "shoal/comm/shm/algorithm.h"

namespace shoal::comm::shm {

static Direct direct(const Shared& shared) { return shared.all_in ? Direct::Pull : Direct::No; }

static void fill(const Turn& turn) {
  for (int r = 0; r < turn.size; ++r)
    turn.keep(turn.my_in() + (r * turn.call.count + turn.first) * turn.element,
              turn.staging[static_cast<std::size_t>(turn.rank)] + r * turn.stride, turn.count * turn.element);
}

static void reduce_part(const Turn& turn, std::span<std::byte* const> from, std::int64_t offset) {
  const Target to[] = {{turn.rank, turn.my_out() + turn.first * turn.element}};
  turn.reduce_all(from, offset, to, turn.count);
}

static void take(const Turn& turn) { reduce_part(turn, turn.staging, turn.rank * turn.stride); }
static void move(const Turn& turn, Direct) {
  reduce_part(turn, turn.in, turn.rank * turn.call.count * turn.element);
}

const Algorithm kReduceScatter = {Op::ReduceScatter, true, false, direct, move, fill, nullptr, take, take};

}  // namespace shoal::comm::shm
