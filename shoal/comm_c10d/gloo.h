// SPDX-License-Identifier: Apache-2.0
// The Gloo inside LibTorch as a Communicator: for ranks on several hosts, and what shm is measured against.
//
// Its sockets know no key: any process that can reach the interface can connect to them. They listen on the
// interface that is named here and on no other; loopback by default.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "shoal/comm/communicator.h"
#include "shoal/rendezvous/store.h"

namespace shoal::comm_c10d {

enum class Calls {  // whether ranks tell each other what they call
  // Each call runs on a thread of the communicator, and calls that differ do not meet. Who waits for 100 ms
  // puts what it called into the store and compares it with what others put there: within half a second all
  // get the error.
  Compared,
  // As LibTorch has it, to measure against: a call runs before it returns, nothing is compared, and a
  // difference ends the process inside Gloo.
  Bare,
};

struct GlooOptions {             // of this rank of a group
  std::string name;              // of the group: the same on all its ranks, new to the store
  int rank = 0;                  // this one's
  int size = 1;                  // how many there are
  std::string interface = "lo";  // of this host, that the others can reach
  std::chrono::nanoseconds limit = std::chrono::seconds(60);  // for all ranks to have connected
  Calls calls = Calls::Compared;                              // or as LibTorch has it
};

// All-gathers, reduce-scatters and all-to-alls take two tensors of as many bytes, at most, beside their own.
inline constexpr std::int64_t kStageBytes = 2 << 20;

// Called by all ranks at once. `store` is borrowed, and outlives the communicator; of the keys that are set
// there none is left but the reason of an end before its time. Throws Timeout where a rank does not come,
// InvalidInput where there is no such interface.
std::unique_ptr<comm::Communicator> make_gloo(rendezvous::Store& store, const GlooOptions& options);

}  // namespace shoal::comm_c10d
