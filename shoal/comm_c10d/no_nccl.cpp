// SPDX-License-Identifier: Apache-2.0
// What stands for nccl.cpp where LibTorch has no CUDA.
#include "shoal/base/error.h"
#include "shoal/comm_c10d/nccl.h"

namespace shoal::comm_c10d {

std::unique_ptr<comm::Communicator> make_nccl(rendezvous::Store&, const NcclOptions& options) {
  fail(ErrorKind::Infeasible, "nccl: group ", options.name,
       ": this LibTorch was built without CUDA; build with one ", "that has it, or use gloo or shm");
}

}  // namespace shoal::comm_c10d
