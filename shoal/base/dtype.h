// SPDX-License-Identifier: Apache-2.0
// Element types, shared by graphs, programs, communication and files.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal {

enum class DType {  // of an element
  Float64,
  Float32,
  Float16,
  BFloat16,
  Int64,
  Int32,
  Int16,
  Int8,
  UInt8,
  Bool,
  Complex64,
  Complex128
};

std::string_view name_of(DType dtype);  // "f32", "bf16", "i64", "bool", …
// The inverse; also takes PyTorch's names ("float32"). None: there is no such type.
std::optional<DType> parse_dtype(std::string_view name);
std::int64_t bytes_of(DType dtype);  // of one element
bool is_floating(DType dtype);       // of 64, 32 or 16 bits, bf16 among them; complex types are not

}  // namespace shoal
