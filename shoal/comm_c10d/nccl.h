// SPDX-License-Identifier: Apache-2.0
// NCCL as a Communicator, where LibTorch was built with CUDA. Its buffers are in the memory of a device.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "shoal/comm/communicator.h"
#include "shoal/rendezvous/store.h"

namespace shoal::comm_c10d {

struct NcclOptions {  // of this rank of a group
  std::string name;   // of the group: the same on all its ranks, new to the store
  int rank = 0;       // this one's
  int size = 1;       // how many there are
  int device = 0;     // of this rank, by CUDA's number
  std::chrono::nanoseconds limit = std::chrono::seconds(60);  // for all ranks to have connected
};

// Called by all ranks at once. `store` is borrowed, and outlives the communicator. Throws Infeasible where
// this LibTorch has no NCCL.
std::unique_ptr<comm::Communicator> make_nccl(rendezvous::Store& store, const NcclOptions& options);

}  // namespace shoal::comm_c10d
