// SPDX-License-Identifier: Apache-2.0
// Counter-based random tensors: element i is a function of (seed, step, ordinal, i) alone, whatever the
// number of threads, of ranks, or of micro-batches. Philox 4x32-10: Salmon et al., SC'11, "Parallel random
// numbers: as easy as 1, 2, 3".
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace shoal::aten {

// Elements that lie one after the other in the row-major order of a larger tensor.
struct Stretch {
  std::int64_t start = 0;
  std::int64_t size = 0;
  friend bool operator==(Stretch, Stretch) = default;
};
// Those of a box of a tensor of shape `whole`, in the box's row-major order, as few as there can be. `box`
// has, for each dim, the number of ranges, then their begins and ends. Throws InvalidInput where it has not.
std::vector<Stretch> stretches_of(at::IntArrayRef whole, at::IntArrayRef box);

// Which numbers. Of a tensor that is a part of a larger one, `start` is the place of its first element in the
// row-major order of the whole.
struct RandomStream {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;     // below 2^48
  std::uint64_t ordinal = 0;  // of the op in its graph; below 2^32
  std::int64_t start = 0;
  // If the part is in several pieces: where, instead of `start`. Borrowed. As many elements as are made.
  std::span<const Stretch> stretches = {};
};

// All of them return a contiguous tensor of the options' dtype on the options' device. Throw InvalidInput for
// a parameter outside its range (a probability above 1, an empty interval, a negative deviation) or a complex
// dtype.
at::Tensor bernoulli(double p, at::IntArrayRef shape, at::TensorOptions options, const RandomStream& stream);
at::Tensor bernoulli(const at::Tensor& p, at::TensorOptions options,
                     const RandomStream& stream);  // of p's shape
at::Tensor uniform(double from, double to, at::IntArrayRef shape, at::TensorOptions options,
                   const RandomStream& stream);
at::Tensor normal(double mean, double deviation, at::IntArrayRef shape, at::TensorOptions options,
                  const RandomStream& stream);
at::Tensor randint(std::int64_t low, std::int64_t high, at::IntArrayRef shape, at::TensorOptions options,
                   const RandomStream& stream);  // low ≤ x < high
at::Tensor exponential(double lambda, at::IntArrayRef shape, at::TensorOptions options,
                       const RandomStream& stream);

// Draws of 32 bits, kWordsOfGroup to a group: those of groups first, first + 1, … that `words` has room for.
// `stream.start` and `stretches` are not looked at. What all of the above are made of.
inline constexpr std::int64_t kWordsOfGroup = 64;
void random_words(std::span<std::uint32_t> words, std::int64_t first, const RandomStream& stream);
// Ten rounds of Philox 4x32 on one counter.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

}  // namespace shoal::aten
