// SPDX-License-Identifier: Apache-2.0
#include "shoal/world/world.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <doctest/doctest.h>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"

namespace world_test {

using namespace shoal;

TEST_CASE("degrees that are not said are what the others leave") {
  CHECK(to_text(mesh_of(6, Degrees{})) == "replicate=6 shard=1 tensor=1");
  CHECK(to_text(mesh_of(6, Degrees{.shard = -1})) == "replicate=1 shard=6 tensor=1");
  CHECK(to_text(mesh_of(6, Degrees{.tensor = 2})) == "replicate=3 shard=1 tensor=2");
  compile::Plan plan;
  plan.mesh = {{"outer", 2}, {"inner", 2}};
  CHECK(to_text(mesh_of(4, Degrees{.shard = 7}, plan)) == "outer=2 inner=2");
  CHECK(contains(error_of([] { mesh_of(6, Degrees{.shard = 4}); }), "6"));
}

TEST_CASE("a part of a batch is a rank's samples, in the dim where they lie") {
  const auto ranks = comm::inproc(2);
  const Batch batch{{"x", at::arange(15).view({5, 3})},
                    {"time_first", at::arange(10).view({2, 5})},
                    {"beside", at::arange(4)},
                    {"scale", at::scalar_tensor(2.0)},
                    {"number", std::int64_t{7}}};
  Parallelism parallelism = {.mesh = mesh_of(2, Degrees{})};
  parallelism.plan.whole_inputs = {"beside"};
  parallelism.plan.batch_dims = {{"time_first", 1}};
  CHECK(part_of(batch, parallelism)["x"].tensor().is_same(batch["x"].tensor()));  // of one rank
  for (int rank = 0; rank < 2; ++rank) {
    parallelism.world = ranks[static_cast<std::size_t>(rank)].get();
    const Batch part = part_of(batch, parallelism);
    const std::int64_t begin = rank == 0 ? 0 : 3, size = rank == 0 ? 3 : 2;
    CHECK(at::equal(part["x"].tensor(), batch["x"].tensor().narrow(0, begin, size)));
    CHECK(at::equal(part["time_first"].tensor(), batch["time_first"].tensor().narrow(1, begin, size)));
    CHECK(part["beside"].tensor().is_same(batch["beside"].tensor()));
    CHECK(part["scale"].tensor().is_same(batch["scale"].tensor()));
    CHECK(part["number"].integer() == 7);
  }
}

TEST_CASE("a process by itself is one rank, whose communicator answers") {
  World world;
  CHECK(world.size() == 1);
  CHECK(world.is_first());
  CHECK(world.job() == nullptr);
  CHECK(world.medium().empty());
  CHECK(world.communicator().size() == 1);
  CHECK(world.parallelism({.shard = -1}).world == nullptr);
}

}  // namespace world_test
