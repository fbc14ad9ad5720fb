// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/offloading.h"

#include <ATen/ops/empty_strided.h>

#include "shoal/aten/types.h"

namespace shoal::train {

Offloading::Offloading(const rewrite::Offload& offload, const std::string& folder) : offload_(offload) {
  if (offload.has_any())
    files_ = std::make_unique<runtime::FileMemory>(folder.empty() ? runtime::kOffloadFolder : folder);
}

at::Tensor Offloading::empty(ir::Role role, const ir::TensorType& type, at::TensorOptions options) const {
  const at::ScalarType dtype = aten::to_torch(type.dtype);
  return offload_.has(role, type) ? files_->empty_strided(type.shape, type.strides, dtype)
                                  : at::empty_strided(type.shape, type.strides, options.dtype(dtype));
}

void Offloading::take_in(ir::Role role, const at::Tensor& tensor) const {
  if (has(role, tensor)) files_->take_in(tensor);
}

bool Offloading::has(ir::Role role, const at::Tensor& tensor) const {
  return files_ != nullptr && tensor.defined() && offload_.has(role, aten::type_of(tensor));
}

}  // namespace shoal::train
