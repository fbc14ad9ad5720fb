// SPDX-License-Identifier: Apache-2.0
// Compiled only where LibTorch has CUDA; no_nccl.cpp stands for it elsewhere.
#include "shoal/comm_c10d/nccl.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/comm_c10d/communicator.h"
#include "shoal/comm_c10d/store.h"

namespace shoal::comm_c10d {

std::unique_ptr<comm::Communicator> make_nccl(rendezvous::Store& store, const NcclOptions& options) {
  SHOAL_CHECK(options.size >= 1 && 0 <= options.rank && options.rank < options.size, InvalidInput,
              "nccl: there is no rank ", options.rank, " in a group of ", options.size);
  // NCCL runs what one group is asked for in one order, messages too.
  Engine engine{.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.device)),
                .messages_beside = false};
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(options.limit);
  if (options.size > 1) {
    auto with = c10d::ProcessGroupNCCL::Options::create();
    with->timeout = limit;
    auto keys = c10::make_intrusive<PrefixedStore>(store, options.name + "/nccl/", limit);
    auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(keys, options.rank, options.size, with);
    engine.interrupt = [nccl] { nccl->abort(); };
    engine.backend = nccl;
  }
  const Group group{.name = options.name, .rank = options.rank, .size = options.size};
  return make_communicator(group, std::move(engine), store, [&store, options](const Group& part) {
    NcclOptions again = options;
    again.name = part.name;
    again.rank = part.rank;
    again.size = part.size;
    return make_nccl(store, again);
  });
}

}  // namespace shoal::comm_c10d
