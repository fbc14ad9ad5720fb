// SPDX-License-Identifier: Apache-2.0
// Every instruction set that this processor has, against loops over single elements with their own
// conversions.
#include "shoal/comm/reduce.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error.h"

using namespace shoal;
using namespace shoal::comm;

using Bytes = std::vector<std::byte>;

static std::vector<Vectors> present() {
  std::vector<Vectors> all = {Vectors::None};
  if (best_vectors() >= Vectors::Avx2) all.push_back(Vectors::Avx2);
  if (best_vectors() >= Vectors::Avx512) all.push_back(Vectors::Avx512);
  return all;
}

// A half is 2^(exponent - 25) times 11 bits.
static double double_of_half(std::uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

// The nearest of all, an even one of two; by search, so that it shares no thought with what it tests.
static std::uint16_t nearest_half(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  const double magnitude = std::abs(value);
  if (magnitude >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
  std::uint16_t low = 0, high = 0x7bff;
  while (low + 1 < high) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (double_of_half(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - double_of_half(low), above = double_of_half(high) - magnitude;
  const std::uint16_t chosen = below < above || (below == above && low % 2 == 0) ? low : high;
  return static_cast<std::uint16_t>(sign | chosen);
}

static std::uint16_t nearest_bfloat(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), rest = bits & 0xffff;
  const auto down = static_cast<std::uint16_t>(bits >> 16);
  return rest > 0x8000 || (rest == 0x8000 && down % 2 == 1) ? static_cast<std::uint16_t>(down + 1) : down;
}

template <class T>
static T element(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
static T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::Min) return std::isnan(double(a)) || a < b ? a : b;
  if (op == ReduceOp::Max) return std::isnan(double(a)) || a > b ? a : b;
  if constexpr (std::is_floating_point_v<T>) return a + b;
  return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <class T, class Widen>
static auto expected_sum(ReduceOp op, const std::vector<Bytes>& from, std::size_t i, const Widen& widen) {
  auto sum = widen(element<T>(from[0], i));
  for (std::size_t k = 1; k < from.size(); ++k) sum = combine(op, sum, widen(element<T>(from[k], i)));
  if (op == ReduceOp::Average)
    sum = static_cast<decltype(sum)>(sum / static_cast<decltype(sum)>(from.size()));
  return sum;
}

template <class T>
static bool same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a) && std::isnan(b)) return true;
  return std::memcmp(&a, &b, sizeof a) == 0;
}

static bool right(const Reduction& how, const std::vector<Bytes>& from, const Bytes& got, std::size_t i) {
  const auto plain = [](auto x) { return x; };
  const auto is_nan = [](std::uint16_t half, int infinity) { return (half & 0x7fff) > infinity; };
  switch (how.dtype) {
    case DType::Float64: return same(element<double>(got, i), expected_sum<double>(how.op, from, i, plain));
    case DType::Float32: return same(element<float>(got, i), expected_sum<float>(how.op, from, i, plain));
    case DType::Int64:
      return same(element<std::int64_t>(got, i), expected_sum<std::int64_t>(how.op, from, i, plain));
    case DType::Int32:
      return same(element<std::int32_t>(got, i), expected_sum<std::int32_t>(how.op, from, i, plain));
    case DType::UInt8:
      return same(element<std::uint8_t>(got, i), expected_sum<std::uint8_t>(how.op, from, i, plain));
    case DType::Float16: {
      const float sum = expected_sum<std::uint16_t>(
          how.op, from, i, [](std::uint16_t x) { return static_cast<float>(double_of_half(x)); });
      const auto half = element<std::uint16_t>(got, i);
      return std::isnan(sum) ? is_nan(half, 0x7c00) : half == nearest_half(sum);
    }
    default: {
      const float sum = expected_sum<std::uint16_t>(how.op, from, i, [](std::uint16_t x) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
      });
      const auto half = element<std::uint16_t>(got, i);
      return std::isnan(sum) ? is_nan(half, 0x7f80) : half == nearest_bfloat(sum);
    }
  }
}

TEST_CASE("every instruction set reduces as a plain loop does, bit for bit") {
  std::mt19937_64 random(7);
  for (const DType dtype : {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16, DType::Int64,
                            DType::Int32, DType::UInt8})
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max})
      for (const int ranks : {1, 2, 3, 9})
        for (const std::int64_t count : {0, 1, 7, 31, 1024, 2077}) {
          if (op == ReduceOp::Average && !is_floating(dtype)) continue;
          const auto bytes = static_cast<std::size_t>(count * bytes_of(dtype));
          std::vector<Bytes> from(static_cast<std::size_t>(ranks), Bytes(bytes));
          for (Bytes& part : from)  // random bits: subnormals, infinities and NaNs are among them
            for (std::byte& byte : part) byte = static_cast<std::byte>(random());
          for (const Vectors vectors : present())
            for (const std::size_t shift : {0, 1}) {
              std::vector<Bytes> shifted;
              std::vector<const std::byte*> inputs;
              for (const Bytes& part : from) {
                shifted.emplace_back(part.size() + shift);
                std::copy(part.begin(), part.end(),
                          shifted.back().begin() + static_cast<std::ptrdiff_t>(shift));
              }
              for (const Bytes& part : shifted) inputs.push_back(part.data() + shift);
              // One output apart, and one over the last input.
              Bytes apart(bytes + shift);
              const Reduction how = {.dtype = dtype, .op = op, .count = count, .vectors = vectors};
              std::byte* const outputs[] = {apart.data() + shift, shifted.back().data() + shift};
              reduce(how, inputs, outputs);
              apart.erase(apart.begin(), apart.begin() + static_cast<std::ptrdiff_t>(shift));
              shifted.back().erase(shifted.back().begin(),
                                   shifted.back().begin() + static_cast<std::ptrdiff_t>(shift));
              std::int64_t wrong = 0;
              for (std::int64_t i = 0; i < count; ++i)
                wrong += !right(how, from, apart, static_cast<std::size_t>(i));
              INFO(name_of(dtype), " ", name_of(op), " of ", ranks, " x ", count, " ", name_of(vectors));
              CHECK(wrong == 0);
              CHECK(apart == shifted.back());
            }
        }
}

TEST_CASE("every half survives its way through float32, on every instruction set") {
  Bytes all(2 * 65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<std::uint16_t>(i);
    std::memcpy(all.data() + 2 * i, &half, 2);
  }
  for (const Vectors vectors : present())
    for (const DType dtype : {DType::Float16, DType::BFloat16}) {
      Bytes got(all.size());
      const std::byte* const from[] = {all.data()};
      std::byte* const to[] = {got.data()};
      reduce({.dtype = dtype, .count = 65536, .vectors = vectors}, from, to);
      const std::uint32_t infinity = dtype == DType::Float16 ? 0x7c00 : 0x7f80;
      const std::uint32_t quiet = dtype == DType::Float16 ? 0x200 : 0x40;
      int wrong = 0;
      for (std::uint32_t i = 0; i < 65536; ++i)
        wrong += element<std::uint16_t>(got, i) != ((i & 0x7fff) > infinity ? i | quiet : i);
      CHECK(wrong == 0);
    }
}

TEST_CASE("the average of integers is refused") {
  std::byte byte{};
  const std::byte* const from[] = {&byte};
  std::byte* const to[] = {&byte};
  CHECK_THROWS_WITH_AS(reduce({.dtype = DType::UInt8, .op = ReduceOp::Average, .count = 1}, from, to),
                       "comm: an average of u8: wanted a floating type", Error);
}
