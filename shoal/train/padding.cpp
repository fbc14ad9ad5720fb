// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/padding.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scalar_tensor.h>

#include <set>
#include <vector>

#include "shoal/base/error.h"

namespace shoal {

static at::Tensor padded(const std::string& name, const at::Tensor& tensor, double value,
                         const Padding& padding) {
  SHOAL_CHECK(padding.dim >= 0 && padding.dim < tensor.dim(), InvalidInput, "padded: item ", name, " has ",
              tensor.dim(), " dims, and dim ", padding.dim, " is to be padded");
  const bool fits = at::scalar_tensor(value, tensor.scalar_type()).item<double>() == value;
  SHOAL_CHECK(fits || tensor.is_floating_point(), InvalidInput, "padded: item ", name, " is ",
              tensor.scalar_type(), ", which cannot hold ", value);
  const std::int64_t rest = tensor.size(padding.dim) % padding.multiple;
  if (rest == 0) return tensor;
  std::vector<std::int64_t> more(2 *
                                 static_cast<std::size_t>(tensor.dim() - padding.dim));  // from the last dim
  more.back() = padding.multiple - rest;
  return at::constant_pad_nd(tensor, more, value);
}

Batch padded(const Batch& batch, const Padding& padding) {
  SHOAL_CHECK(padding.multiple >= 1, InvalidInput, "padded: the multiple is ", padding.multiple,
              "; it is what lengths become a multiple of, at least 1");
  std::set<std::string> seen;
  Batch made = map_tensors(batch, [&](const std::string& path, const at::Tensor& tensor) {
    const auto value = padding.values.find(path);
    if (value == padding.values.end()) return tensor;
    seen.insert(path);
    return padded(path, tensor, value->second, padding);
  });
  for (const auto& [path, value] : padding.values)
    SHOAL_CHECK(seen.contains(path), InvalidInput, "padded: the batch has no tensor ", path);
  return made;
}

}  // namespace shoal
