// SPDX-License-Identifier: Apache-2.0
#include "shoal/world/world.h"

#include <unistd.h>

#include <tuple>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm_c10d/nccl.h"
#include "shoal/comm_c10d/of_hosts.h"
#include "shoal/compile/pins.h"
#include "shoal/ps/client.h"
#include "shoal/ps/map_keeper.h"

namespace shoal {

World::World(const WorldOptions& options)
    : place_(elastic::place_of(elastic::environment_of(environ))),
      num_servers_(elastic::servers_in(elastic::environment_of(environ))) {
  if (size() > 1 || num_servers_ > 0) job_ = elastic::join(elastic::environment_of(environ), options.limit);
  if (size() == 1) {
    communicator_ = std::move(comm::inproc(1).front());
    return;
  }
  limit_ = job_->limit();
  communicator_ = job_->recorded(comm_c10d::make_of_hosts(job_->store(), {.rank = rank(),
                                                                          .first_ranks = job_->first_ranks(),
                                                                          .interface = job_->interface(),
                                                                          .limit = options.limit}));
  medium_ = comm_c10d::describe_of_hosts(job_->first_ranks());
  if (options.device < 0) return;
  tensors_ = comm_c10d::make_nccl(
      job_->store(),
      {.name = "tensors", .rank = rank(), .size = size(), .device = options.device, .limit = options.limit});
  medium_ = concat("NCCL; for what is no tensor ", medium_);
}

sharding::Mesh mesh_of(int ranks, const Degrees& degrees, const compile::Plan& plan) {
  if (!plan.mesh.empty()) return compile::mesh_of(plan.mesh, ranks);
  const auto& [replicate, shard, tensor, pipeline] = degrees;
  const bool is_said = shard == -1 || tensor == -1 || pipeline == -1;
  return mesh_of(ranks, replicate.value_or(is_said ? 1 : -1), shard, tensor, pipeline);
}

Parallelism World::parallelism(const Degrees& degrees, const compile::Plan& plan) {
  return {.mesh = mesh_of(size(), degrees, plan),
          .world = size() == 1 ? nullptr : communicator_.get(),
          .tensors = tensors_.get(),
          .plan = plan,
          .limit = limit_};
}

std::unique_ptr<ps::Tables> World::tables() {
  if (num_servers_ == 0) return nullptr;
  const ps::ClientOptions options = {.epoch = static_cast<std::uint32_t>(job_->epoch()),
                                     .limit = job_->limit(),
                                     .maps = ps::MapKeeper(job_->store())};
  options.maps->wait(job_->limit());
  return std::make_unique<ps::Client>(*job_->key(), std::vector<ps::Endpoint>(), options);
}

Batch part_of(const Batch& batch, const Parallelism& parallelism) {
  if (parallelism.world == nullptr) return batch;
  const auto& [mesh, world, plan] = std::tie(parallelism.mesh, parallelism.world, parallelism.plan);
  return map_tensors(batch, [&](const std::string& name, const at::Tensor& tensor) {
    if (!compile::is_cut(plan, name, static_cast<std::size_t>(tensor.dim()))) return tensor;
    const int dim = compile::batch_dim_of(plan, name);
    const auto [begin, end] = samples_of(mesh, world->rank(), tensor.size(dim), plan);
    return tensor.narrow(dim, begin, end - begin);
  });
}

}  // namespace shoal
