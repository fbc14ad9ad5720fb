// SPDX-License-Identifier: Apache-2.0
#include "shoal/aten/types.h"

#include <utility>

#include "shoal/base/error.h"

namespace shoal::aten {

static constexpr std::pair<DType, at::ScalarType> kTypes[] = {
    {DType::Float64, at::kDouble},
    {DType::Float32, at::kFloat},
    {DType::Float16, at::kHalf},
    {DType::BFloat16, at::kBFloat16},
    {DType::Int64, at::kLong},
    {DType::Int32, at::kInt},
    {DType::Int16, at::kShort},
    {DType::Int8, at::kChar},
    {DType::UInt8, at::kByte},
    {DType::Bool, at::kBool},
    {DType::Complex64, at::kComplexFloat},
    {DType::Complex128, at::kComplexDouble},
};

at::ScalarType to_torch(DType dtype) {
  for (const auto& [ours, theirs] : kTypes)
    if (ours == dtype) return theirs;
  fail(ErrorKind::Internal, "dtype ", name_of(dtype), " has no ATen type");
}

DType from_torch(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == type) return ours;
  fail(ErrorKind::InvalidInput, "a tensor of type ", c10::toString(type),
       " cannot be captured: convert it to a ", "floating-point, integer or bool type first");
}

ir::TensorType type_of(const at::Tensor& tensor) {
  return {from_torch(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec()};
}

}  // namespace shoal::aten
