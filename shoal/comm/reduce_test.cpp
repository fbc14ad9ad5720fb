// SPDX-License-Identifier: Apache-2.0
// Every instruction set that this processor has, against loops over single elements with conversions of their
// own.
#include "shoal/comm/reduce.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/reference.h"

using namespace shoal;
using namespace shoal::comm;

using Bytes = std::vector<std::byte>;

static std::vector<Vectors> present() {
  std::vector<Vectors> all = {Vectors::None};
  if (best_vectors() >= Vectors::Avx2) all.push_back(Vectors::Avx2);
  if (best_vectors() >= Vectors::Avx512) all.push_back(Vectors::Avx512);
  return all;
}

template <class T>
static T element(const Bytes& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
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
          std::vector<const std::byte*> whole;
          for (const Bytes& part : from) whole.push_back(part.data());
          const Bytes expected = expected_reduction(dtype, op, count, whole);
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
                wrong += !same_element(dtype, apart.data(), expected.data(), i);
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
