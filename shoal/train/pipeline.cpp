// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/pipeline.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <functional>

#include "shoal/base/error.h"
#include "shoal/compile/pins.h"

namespace shoal::train {

// Calls see(path, size) for each item that is cut, and returns whether there is one.
static bool for_each_cut(const Batch& batch, const compile::Plan& plan,
                         const std::function<void(const std::string&, std::int64_t)>& see) {
  bool is_cut = false;
  for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf.value());
    if (tensor == nullptr || !compile::is_cut(plan, path, static_cast<std::size_t>(tensor->dim()))) return;
    is_cut = true;
    see(path, tensor->size(compile::batch_dim_of(plan, path)));
  });
  return is_cut;
}

std::int64_t most_microbatches(const Batch& batch, std::int64_t count, const compile::Plan& plan) {
  for_each_cut(batch, plan, [&](const std::string&, std::int64_t size) {
    count = std::min(count, std::max<std::int64_t>(size, 1));
  });
  return count;
}

std::vector<Batch> microbatches_of(const Batch& batch, std::int64_t count, const compile::Plan& plan) {
  const bool is_cut = for_each_cut(batch, plan, [&](const std::string& path, std::int64_t size) {
    SHOAL_CHECK(
        size >= count || count == 1, InvalidInput, "pipeline: item ", path, " of the batch has ", size,
        " samples, and they are to be ", count,
        " micro-batches. Remedy: a larger batch, or fewer micro-batches (the plan's line 'pipeline')");
  });
  std::vector<Batch> parts;
  for (int i = 0; i < (is_cut ? count : 1); ++i)
    parts.push_back(map_tensors(batch, [&](const std::string& path, const at::Tensor& tensor) {
      if (!compile::is_cut(plan, path, static_cast<std::size_t>(tensor.dim()))) return tensor;
      const int dim = compile::batch_dim_of(plan, path);
      const auto [begin, end] =
          sharding::units_of({.dim = dim}, tensor.size(dim), i, static_cast<int>(count));
      return tensor.narrow(dim, begin, end - begin);
    }));
  return parts;
}

// Of the first item that is cut; -1 where none is.
static std::int64_t samples_in(const Batch& batch, const compile::Plan& plan) {
  std::int64_t samples = -1;
  for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf.value());
    if (tensor != nullptr && samples < 0 &&
        compile::is_cut(plan, path, static_cast<std::size_t>(tensor->dim())))
      samples = tensor->size(compile::batch_dim_of(plan, path));
  });
  return samples;
}

std::map<std::string, at::Tensor> joined(const std::vector<std::map<std::string, at::Tensor>>& outputs,
                                         const std::vector<Batch>& microbatches, const compile::Plan& plan) {
  std::map<std::string, at::Tensor> all;
  if (outputs.size() == 1) return outputs[0];
  for (const auto& [name, first] : outputs.front()) {
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      parts.push_back(outputs[i].at(name));
      SHOAL_CHECK(
          parts[i].dim() > 0 && parts[i].size(0) == samples_in(microbatches[i], plan), InvalidInput,
          "pipeline: output ", name,
          " of a micro-batch does not have this rank's samples in dim 0, and those of a step's micro-batches "
          "cannot be joined; so it is where ranks share the batch, and of what a model keeps of its forward. "
          "Remedy: step_over() with micro-batches of your own, and outputs() after each");
    }
    all.emplace(name, at::cat(parts));
  }
  return all;
}

}  // namespace shoal::train
