// SPDX-License-Identifier: Apache-2.0
// Element types and tensor types of the IR, and ATen's.
#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/base/dtype.h"
#include "shoal/ir/graph.h"

namespace shoal::aten {

at::ScalarType to_torch(DType dtype);
// Throws InvalidInput for types the IR has no name for (quantised, float8).
DType from_torch(at::ScalarType type);
ir::TensorType type_of(const at::Tensor& tensor);

}  // namespace shoal::aten
