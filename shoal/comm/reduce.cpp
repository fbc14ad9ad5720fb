// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3: the loops below are written once and made into vectors by the compiler, once for each
// instruction set (always_inline: a function takes its caller's). Only the conversion of float16 has
// instructions of its own.
//
// Work goes block by block: a block's sum stays in the first-level cache, each input is read once and each
// output written once.
#include "shoal/comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "shoal/base/error.h"
#include "shoal/base/names.h"

namespace shoal::comm {

static constexpr std::int64_t kBlock = 1024;  // elements

static constexpr Names<Vectors, 3> kVectors = {{
    {Vectors::None, "none"},
    {Vectors::Avx2, "avx2"},
    {Vectors::Avx512, "avx512"},
}};

std::string_view name_of(Vectors vectors) { return name_in(kVectors, vectors); }

namespace {

template <class T>
[[gnu::always_inline]] inline T load(const std::byte* from, std::int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// A format says how a block of elements becomes what is summed, and back. The order within the block is its
// own.

// Elements that are summed as what they are.
template <class T>
struct Plain {
  using Stored = T;
  using Summed = T;
  [[gnu::always_inline]] static void widen(const std::byte* from, T* to, std::int64_t count) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  [[gnu::always_inline]] static void narrow(const T* from, T* to, std::int64_t count) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
  }
};

// Two to a word of 32 bits, whose halves are floats but for a shift or a mask: the compiler needs no
// shuffles. A block is widened to all low halves, then all high ones; its count is even.
struct BFloat {
  using Stored = std::uint16_t;
  using Summed = float;
  [[gnu::always_inline]] static float low(std::uint32_t word) { return std::bit_cast<float>(word << 16); }
  [[gnu::always_inline]] static float high(std::uint32_t word) {
    return std::bit_cast<float>(word & 0xffff0000U);
  }
  // Rounded to nearest even, in the upper half; below it are bits to be dropped.
  [[gnu::always_inline]] static std::uint32_t rounded(float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    return x != x ? bits | 0x400000U : bits + 0x7fffU + ((bits >> 16) & 1U);
  }
  [[gnu::always_inline]] static std::uint32_t word(float low, float high) {
    return rounded(low) >> 16 | (rounded(high) & 0xffff0000U);
  }
  [[gnu::always_inline]] static void widen(const std::byte* from, float* to, std::int64_t count) {
    std::uint32_t words[kBlock / 2];
    std::memcpy(words, from, static_cast<std::size_t>(count) * 2);
    for (std::int64_t i = 0; i < count / 2; ++i) to[i] = low(words[i]);
    for (std::int64_t i = 0; i < count / 2; ++i) to[count / 2 + i] = high(words[i]);
  }
  [[gnu::always_inline]] static void narrow(const float* from, std::uint16_t* to, std::int64_t count) {
    std::uint32_t words[kBlock / 2];
    for (std::int64_t i = 0; i < count / 2; ++i) words[i] = word(from[i], from[count / 2 + i]);
    std::memcpy(to, words, static_cast<std::size_t>(count) * 2);
  }
};

float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU, fraction = half & 0x3ffU;
  if (exponent == 0) {  // subnormal: in units of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1f) {
    const std::uint32_t quiet = fraction == 0 ? 0 : 0x400000U;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (fraction << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

std::uint16_t half_of_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U, magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  } else if (magnitude >= 0x47800000U) {  // 2^16 and more: infinite
    half = 0x7c00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14: the sum with 0.5 rounds to units of 2^-24
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  } else {
    const std::uint32_t rebiased = magnitude - 0x38000000U;
    half = (rebiased + 0xfffU + ((rebiased >> 13) & 1U)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

struct SoftHalf {
  using Stored = std::uint16_t;
  using Summed = float;
  [[gnu::always_inline]] static void widen(const std::byte* from, float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = float_of_half(load<std::uint16_t>(from, i));
  }
  [[gnu::always_inline]] static void narrow(const float* from, std::uint16_t* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = half_of_float(from[i]);
  }
};

template <ReduceOp op, class T>
[[gnu::always_inline]] inline T combined(T a, T b) {
  if constexpr (op == ReduceOp::Min) return (a != a) | (a < b) ? a : b;
  if constexpr (op == ReduceOp::Max) return (a != a) | (a > b) ? a : b;
  if constexpr (std::is_same_v<T, std::uint8_t>) return static_cast<T>(a + b);
  if constexpr (std::is_integral_v<T>) {
    using Wrapping = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
  } else {
    return a + b;
  }
}

using Inputs = std::span<const std::byte* const>;
using Outputs = std::span<std::byte* const>;

template <ReduceOp op, class T>
[[gnu::always_inline]] inline T finished(T sum, T ranks) {
  if constexpr (op == ReduceOp::Average) return static_cast<T>(sum / ranks);
  return sum;
}

template <class T>
[[gnu::always_inline]] inline void store(T value, std::byte* to, std::int64_t i) {
  std::memcpy(to + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

// The reduction of the i-th elements (of bfloat16: of the i-th two) of two inputs.
template <class Format, ReduceOp op>
[[gnu::always_inline]] inline auto reduced_two(const std::byte* a, const std::byte* b, std::int64_t i) {
  if constexpr (std::is_same_v<Format, BFloat>) {
    const std::uint32_t x = load<std::uint32_t>(a, i), y = load<std::uint32_t>(b, i);
    return BFloat::word(finished<op>(combined<op>(BFloat::low(x), BFloat::low(y)), 2.0F),
                        finished<op>(combined<op>(BFloat::high(x), BFloat::high(y)), 2.0F));
  } else {
    using T = typename Format::Stored;
    return finished<op>(combined<op>(load<T>(a, i), load<T>(b, i)), T{2});
  }
}

// Of two inputs, the commonest number, nothing is kept but in registers. Whether it did anything.
template <class Format, ReduceOp op>
[[gnu::always_inline]] inline bool reduce_two(std::int64_t count, Inputs from, Outputs to) {
  constexpr bool kTwoToAWord = std::is_same_v<Format, BFloat>;
  if constexpr (!kTwoToAWord && !std::is_same_v<typename Format::Stored, typename Format::Summed>) {
    return false;
  } else {
    if (from.size() != 2 || to.size() > 2) return false;
    const std::byte *a = from[0], *b = from[1];
    std::byte *first = to[0], *second = to[to.size() - 1];
    const std::int64_t num = kTwoToAWord ? count / 2 : count;
    if (first == second) {
#pragma GCC ivdep  // an output is an input or apart from it
      for (std::int64_t i = 0; i < num; ++i) store(reduced_two<Format, op>(a, b, i), first, i);
      return true;
    }
#pragma GCC ivdep
    for (std::int64_t i = 0; i < num; ++i) {
      const auto result = reduced_two<Format, op>(a, b, i);
      store(result, first, i);
      store(result, second, i);
    }
    return true;
  }
}

// Into `result`, which is of its own: an output may be an input, and then the compiler could make no vectors.
template <class Format, ReduceOp op>
[[gnu::always_inline]] inline void reduce_block(Inputs from, std::int64_t offset, std::int64_t count,
                                                typename Format::Stored* result) {
  using Summed = typename Format::Summed;
  alignas(64) Summed sum[kBlock] = {}, next[kBlock];
  Format::widen(from[0] + offset, sum, count);
  for (std::size_t k = 1; k < from.size(); ++k) {
    Format::widen(from[k] + offset, next, count);
    for (std::int64_t i = 0; i < count; ++i) sum[i] = combined<op>(sum[i], next[i]);
  }
  if constexpr (op == ReduceOp::Average) {
    const Summed ranks = static_cast<Summed>(from.size());
    for (std::int64_t i = 0; i < count; ++i) sum[i] = finished<op>(sum[i], ranks);
  }
  Format::narrow(sum, result, count);
}

template <class Format, ReduceOp op>
[[gnu::always_inline]] inline void reduce_blocks(std::int64_t count, Inputs from, Outputs to) {
  using Stored = typename Format::Stored;
  const std::int64_t bytes = sizeof(Stored);
  alignas(64) Stored result[kBlock];
  const std::int64_t even = std::is_same_v<Format, BFloat> ? count / 2 * 2 : count;
  const bool reduced = reduce_two<Format, op>(even, from, to);
  for (std::int64_t first = 0; first < even && !reduced; first += kBlock) {
    const std::int64_t num = std::min(kBlock, even - first);
    reduce_block<Format, op>(from, first * bytes, num, result);
    for (std::byte* out : to) std::memcpy(out + first * bytes, result, static_cast<std::size_t>(num * bytes));
  }
  if (even == count) return;
  float sum = 0;  // the last of an odd number of bfloat16
  for (std::size_t k = 0; k < from.size(); ++k) {
    const float next = BFloat::low(load<std::uint16_t>(from[k], even));
    sum = k == 0 ? next : combined<op>(sum, next);
  }
  const std::uint32_t word = BFloat::word(finished<op>(sum, static_cast<float>(from.size())), 0.0F);
  for (std::byte* out : to) std::memcpy(out + even * bytes, &word, 2);
}

template <class Format>
[[gnu::always_inline]] inline void reduce_format(const Reduction& how, Inputs from, Outputs to) {
  switch (how.op) {
    case ReduceOp::Sum: return reduce_blocks<Format, ReduceOp::Sum>(how.count, from, to);
    case ReduceOp::Average: return reduce_blocks<Format, ReduceOp::Average>(how.count, from, to);
    case ReduceOp::Min: return reduce_blocks<Format, ReduceOp::Min>(how.count, from, to);
    case ReduceOp::Max: return reduce_blocks<Format, ReduceOp::Max>(how.count, from, to);
  }
}

template <class Half>
[[gnu::always_inline]] inline void reduce_any(const Reduction& how, Inputs from, Outputs to) {
  switch (how.dtype) {
    case DType::Float64: return reduce_format<Plain<double>>(how, from, to);
    case DType::Float32: return reduce_format<Plain<float>>(how, from, to);
    case DType::Float16: return reduce_format<Half>(how, from, to);
    case DType::BFloat16: return reduce_format<BFloat>(how, from, to);
    case DType::Int64: return reduce_format<Plain<std::int64_t>>(how, from, to);
    case DType::Int32: return reduce_format<Plain<std::int32_t>>(how, from, to);
    case DType::UInt8: return reduce_format<Plain<std::uint8_t>>(how, from, to);
    default: fail(ErrorKind::InvalidInput, "comm: no reduction of ", name_of(how.dtype));
  }
}

void reduce_plain(const Reduction& how, Inputs from, Outputs to) { reduce_any<SoftHalf>(how, from, to); }

#ifdef __x86_64__

// float16 by F16C, eight at a time. Functions of their own: a block is worth a call.
struct VectorHalf {
  using Stored = std::uint16_t;
  using Summed = float;
  [[gnu::target("avx2,f16c")]] static void widen(const std::byte* from, float* to, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8)
      _mm256_storeu_ps(to + i,
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i))));
    for (; i < count; ++i) to[i] = float_of_half(load<std::uint16_t>(from, i));
  }
  [[gnu::target("avx2,f16c")]] static void narrow(const float* from, std::uint16_t* to, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; ++i) to[i] = half_of_float(from[i]);
  }
};

[[gnu::target("avx2,f16c")]] void reduce_avx2(const Reduction& how, Inputs from, Outputs to) {
  reduce_any<VectorHalf>(how, from, to);
}

[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,prefer-vector-width=512")]] void reduce_avx512(
    const Reduction& how, Inputs from, Outputs to) {
  reduce_any<VectorHalf>(how, from, to);
}

#endif

}  // namespace

#ifdef __x86_64__
// clang's __builtin_cpu_supports does not know it.
static bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

Vectors best_vectors() {
#ifdef __x86_64__
  const bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx2 && avx512 ? Vectors::Avx512 : avx2 ? Vectors::Avx2 : Vectors::None;
#else
  return Vectors::None;
#endif
}

void reduce(const Reduction& reduction, Inputs from, Outputs to) {
  SHOAL_CHECK(!from.empty() && !to.empty(), Internal, "comm: a reduction of ", from.size(), " inputs to ",
              to.size(), " outputs");
  SHOAL_CHECK(reduction.op != ReduceOp::Average || is_floating(reduction.dtype), InvalidInput,
              "comm: an average of ", name_of(reduction.dtype), ": wanted a floating type");
#ifdef __x86_64__
  if (reduction.vectors == Vectors::Avx512) return reduce_avx512(reduction, from, to);
  if (reduction.vectors == Vectors::Avx2) return reduce_avx2(reduction, from, to);
#endif
  reduce_plain(reduction, from, to);
}

}  // namespace shoal::comm
