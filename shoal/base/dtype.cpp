// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/dtype.h"

#include "shoal/base/error.h"

namespace shoal {

namespace {
struct Row {
  DType dtype;
  std::string_view name;
  std::string_view torch_name;
  std::int64_t bytes;
  bool floating;
};
}  // namespace

// In the order of the enumerators.
static constexpr Row kRows[] = {
    {DType::Float64, "f64", "float64", 8, true},      {DType::Float32, "f32", "float32", 4, true},
    {DType::Float16, "f16", "float16", 2, true},      {DType::BFloat16, "bf16", "bfloat16", 2, true},
    {DType::Int64, "i64", "int64", 8, false},         {DType::Int32, "i32", "int32", 4, false},
    {DType::Int16, "i16", "int16", 2, false},         {DType::Int8, "i8", "int8", 1, false},
    {DType::UInt8, "u8", "uint8", 1, false},          {DType::Bool, "bool", "bool", 1, false},
    {DType::Complex64, "c64", "complex64", 8, false}, {DType::Complex128, "c128", "complex128", 16, false},
};

static constexpr const Row& row_of(DType dtype) { return kRows[static_cast<int>(dtype)]; }
static_assert(row_of(DType::Complex128).dtype == DType::Complex128 &&
              row_of(DType::Int64).dtype == DType::Int64);

std::string_view name_of(DType dtype) { return row_of(dtype).name; }
std::int64_t bytes_of(DType dtype) { return row_of(dtype).bytes; }
bool is_floating(DType dtype) { return row_of(dtype).floating; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name || row.torch_name == name) return row.dtype;
  return std::nullopt;
}

}  // namespace shoal
