// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/memory.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "shoal/aten/memory.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"

namespace shoal::train {

namespace {
struct Extent {
  std::uintptr_t begin;
  std::uintptr_t end;
  const std::pair<std::string, at::Tensor>* parameter;
};
}  // namespace

static Extent extent_of(const std::pair<std::string, at::Tensor>& parameter) {
  const auto& tensor = parameter.second;
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto begin = reinterpret_cast<std::uintptr_t>(aten::address_of(tensor));
  return {begin, begin + (static_cast<std::size_t>(last) + 1) * tensor.element_size(), &parameter};
}

void refuse_shared_memory(const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  std::vector<Extent> extents;
  for (const auto& parameter : parameters) {
    const auto& tensor = parameter.second;
    const bool counts = tensor.defined() && tensor.requires_grad() && aten::address_of(tensor) != nullptr;
    if (counts) extents.push_back(extent_of(parameter));
  }
  std::ranges::sort(extents, {}, &Extent::begin);
  for (auto later = extents.begin(); later != extents.end(); ++later) {
    if (later == extents.begin()) continue;
    const auto& [first, a] = *std::prev(later)->parameter;
    const auto& [second, b] = *later->parameter;
    if (later->begin >= std::prev(later)->end || a.is_same(b)) continue;
    if (at::get_overlap_status(a, b) == at::MemOverlapStatus::No) continue;
    fail(ErrorKind::InvalidInput, "trainer: parameters ", first, " and ", second,
         " share memory and are two tensors: each would have a gradient and an update of its own. Remedy: "
         "make "
         "them one parameter (b.weight = a.weight, not .data), or give one a copy");
  }
}

at::Tensor lying_as(const ir::TensorType& type, at::Device device, const at::Tensor& tensor) {
  const auto dtype = aten::to_torch(type.dtype);
  const bool is_contiguous = ir::contiguous(type.dtype, type.shape).strides == type.strides;
  const bool fits =
      tensor.scalar_type() == dtype && tensor.device() == device &&
      (tensor.strides() == at::IntArrayRef(type.strides) || (tensor.is_contiguous() && is_contiguous));
  if (fits) return tensor.detach();
  return at::empty_strided(type.shape, type.strides, at::TensorOptions(device).dtype(dtype)).copy_(tensor);
}

}  // namespace shoal::train
