// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/device.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/version.h>
#include <unistd.h>

#include <utility>

#include "shoal/base/error.h"
#include "shoal/elastic/place.h"

namespace shoal::cli {

at::Device device_of(const Recipe& recipe) {
  if (recipe.training.device == DeviceType::CPU) return at::kCPU;
  const int rank = elastic::place_of(elastic::environment_of(environ)).local_rank;
  const int count = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  SHOAL_CHECK(count > 0, Infeasible, "training.device is cuda, and LibTorch ", TORCH_VERSION,
              " finds none here: it was built without CUDA, or this host has no GPU or no driver for it. "
              "Remedy: training.device=cpu, or a build with a LibTorch that has CUDA, on a host with a GPU");
  SHOAL_CHECK(rank < count, Infeasible, "training.device is cuda, and rank ", rank,
              " of this host has no device: there are ", count, ". Remedy: -n ", count,
              ", or training.device=cpu");
  return {at::kCUDA, static_cast<at::DeviceIndex>(rank)};
}

std::optional<std::int64_t> peak_bytes_of_device() {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(at::kCUDA));
  if (allocator == nullptr) return std::nullopt;
  const auto stats = allocator->getDeviceStats(at::detail::getCUDAHooks().getCurrentDevice());
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

static Batch moved(const Batch& batch, at::Device device) {
  return map_tensors(batch, [&](const std::string&, const at::Tensor& tensor) { return tensor.to(device); });
}

Task on_device(Task task, at::Device device) {
  if (device.is_cpu()) return task;
  task.batch = [device, make = std::move(task.batch)](const Share& share) {
    return moved(make(share), device);
  };
  task.held_out.batch = [device, make = std::move(task.held_out.batch)](std::int64_t index) {
    return moved(make(index), device);
  };
  if (task.sample)
    task.sample = [sample = std::move(task.sample)](torch::nn::AnyModule& model) {
      model.ptr()->to(at::kCPU);
      return sample(model);
    };
  return task;
}

}  // namespace shoal::cli
