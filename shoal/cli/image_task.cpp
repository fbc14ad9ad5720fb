// SPDX-License-Identifier: Apache-2.0
// dataset.name = "random_images": noise with labels drawn by chance. There is nothing to learn: it shows that
// a model captures, trains and how fast.
#include <ATen/Functions.h>
#include <ATen/core/Generator.h>

#include "shoal/base/error.h"
#include "shoal/cli/task.h"
#include "shoal/data/hash.h"

namespace shoal::cli {

static constexpr std::int64_t kHeldOutBatches = 4;

Task make_image_task(const Recipe& recipe) {
  const auto config = std::get<models::ResnetConfig>(recipe.model.config);
  const std::int64_t batch = recipe.training.local_batch_size;
  const std::int64_t size = recipe.dataset.image_size;
  const auto type = recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat;
  const auto seed = static_cast<std::uint64_t>(recipe.training.seed);
  const auto draw = [=](std::int64_t index, std::int64_t samples) -> Batch {
    at::Generator generator =
        at::detail::createCPUGenerator(data::mix(seed ^ data::mix(static_cast<std::uint64_t>(index))));
    return {{"inputs", at::randn({samples, config.in_channels, size, size}, generator, type)},
            {"targets", at::randint(config.num_classes, {samples}, generator, at::kLong)}};
  };
  Task task;
  task.description =
      concat("random images of ", size, "x", size, " with random labels: nothing can be learnt");
  task.unit = "images";
  task.units_per_sample = 1;
  task.num_samples = std::int64_t{1} << 40;  // no two batches are the same
  task.batch = [draw](const Share& share) {
    return part_of(draw(share.position, share.samples), share.part);
  };
  task.held_out = {.num_batches = kHeldOutBatches,
                   .batch = [draw, batch](std::int64_t index) { return draw(-1 - index, batch); },
                   .num_targets = [batch](std::int64_t) { return batch; }};
  return task;
}

}  // namespace shoal::cli
