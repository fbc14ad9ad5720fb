// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "shoal/base/error.h"

namespace shoal::comm {

namespace {

// 16-bit floats as their bits, each kind with a type of its own.
struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

template <class T>
T element(const std::byte* bytes, std::int64_t i) {
  T value;
  std::memcpy(&value, bytes + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// `fraction` bits of it, above them the exponent: 2^(exponent - bias) times 1 and the fraction.
float float_of(std::uint16_t bits, int fraction_bits, int bias) {
  const int one = 1 << fraction_bits, fraction = bits & (one - 1), last = 0x7fff >> fraction_bits;
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const float sign = bits & 0x8000 ? -1 : 1;
  if (exponent == last) return fraction ? std::numeric_limits<float>::quiet_NaN() : sign * HUGE_VALF;
  return sign * (exponent ? std::ldexp(static_cast<float>(one + fraction), exponent - bias - fraction_bits)
                          : std::ldexp(static_cast<float>(fraction), 1 - bias - fraction_bits));
}

// All values of a 16-bit format, by their bits.
struct Table {
  Table(int of_fraction, int of_exponent) : fraction_bits(of_fraction), bias(of_exponent), values(1 << 16) {
    for (std::uint32_t bits = 0; bits < values.size(); ++bits)
      values[bits] = float_of(static_cast<std::uint16_t>(bits), fraction_bits, bias);
  }
  // The nearest of all, an even one of two: as many of the units that numbers of its size have.
  std::uint16_t nearest(float value) const {
    const int infinity = 0x7fff >> fraction_bits << fraction_bits;
    int bits = infinity;
    if (value == 0) {
      bits = 0;
    } else if (std::isnan(value)) {
      ++bits;
    } else if (std::isfinite(value)) {
      int exponent = 0;
      std::frexp(value, &exponent);  // below 2^exponent, and at least half of it
      const int field = std::max(1, exponent - 1 + bias);
      const double units = std::ldexp(std::abs(static_cast<double>(value)), bias + fraction_bits - field);
      bits = std::min(infinity, ((field - 1) << fraction_bits) + static_cast<int>(std::nearbyint(units)));
    }
    return static_cast<std::uint16_t>((std::signbit(value) ? 0x8000 : 0) | bits);
  }
  int fraction_bits, bias;
  std::vector<float> values;
};

const Table& halves() {
  static const Table table(10, 15);
  return table;
}
const Table& bfloats() {
  static const Table table(7, 127);
  return table;
}

// What an element counts as, and back.
template <class T>
T widened(T value) {
  return value;
}
float widened(Half half) { return halves().values[half.bits]; }
float widened(BFloat bfloat) { return bfloats().values[bfloat.bits]; }

template <class T, class Wide>
T narrowed(Wide value) {
  if constexpr (std::is_same_v<T, Half>) return {halves().nearest(value)};
  if constexpr (std::is_same_v<T, BFloat>) return {bfloats().nearest(value)};
  if constexpr (std::is_same_v<T, Wide>) return value;
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::Min) return is_nan(a) || a < b ? a : b;
  if (op == ReduceOp::Max) return is_nan(a) || a > b ? a : b;
  if constexpr (std::is_floating_point_v<T>) return a + b;
  return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <class T>
void reduce_all(ReduceOp op, std::int64_t count, std::span<const std::byte* const> from, std::byte* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    auto all = widened(element<T>(from[0], i));
    for (const std::byte* next : from.subspan(1)) all = combine(op, all, widened(element<T>(next, i)));
    if (op == ReduceOp::Average)
      all = static_cast<decltype(all)>(all / static_cast<decltype(all)>(from.size()));
    const T result = narrowed<T>(all);
    std::memcpy(to + i * static_cast<std::int64_t>(sizeof(T)), &result, sizeof(T));
  }
}

template <class T>
bool same(const std::byte* a, const std::byte* b, std::int64_t i) {
  const std::int64_t at = i * static_cast<std::int64_t>(sizeof(T));
  return std::memcmp(a + at, b + at, sizeof(T)) == 0 ||
         (is_nan(widened(element<T>(a, i))) && is_nan(widened(element<T>(b, i))));
}

// Calls `body` with an element of the type.
template <class Body>
auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::Float64: return body(double{});
    case DType::Float32: return body(float{});
    case DType::Float16: return body(Half{});
    case DType::BFloat16: return body(BFloat{});
    case DType::Int64: return body(std::int64_t{});
    case DType::Int32: return body(std::int32_t{});
    case DType::UInt8: return body(std::uint8_t{});
    default: fail(ErrorKind::Internal, "comm: no reference for ", name_of(dtype));
  }
}

}  // namespace

std::vector<std::byte> expected_reduction(DType dtype, ReduceOp op, std::int64_t count,
                                          std::span<const std::byte* const> from) {
  std::vector<std::byte> result(static_cast<std::size_t>(count * bytes_of(dtype)));
  with_type(dtype, [&](auto of) { reduce_all<decltype(of)>(op, count, from, result.data()); });
  return result;
}

bool same_element(DType dtype, const std::byte* a, const std::byte* b, std::int64_t index) {
  return with_type(dtype, [&](auto of) { return same<decltype(of)>(a, b, index); });
}

}  // namespace shoal::comm
