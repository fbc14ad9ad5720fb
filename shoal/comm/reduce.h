// SPDX-License-Identifier: Apache-2.0
// Element-wise sums, averages, minima and maxima of several ranks' elements: the arithmetic of every
// reduction.
//
// Inputs are taken in the order given, whatever the instruction set: the bits of a result are a function of
// the inputs alone. 16-bit floats are summed in float32 over all inputs and rounded once (to nearest even);
// an average is the sum, then one division. Where any input is NaN the minimum and the maximum are NaN.
// Integers wrap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "shoal/base/dtype.h"
#include "shoal/comm/communicator.h"

namespace shoal::comm {

enum class Vectors { None, Avx2, Avx512 };
std::string_view name_of(Vectors vectors);  // "none", "avx2", "avx512"
Vectors best_vectors();                     // of this processor

struct Reduction {
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  std::int64_t count = 0;
  Vectors vectors = best_vectors();
};

// Writes the reduction of all of `from` to each of `to`, which may be one of `from` but not overlap it
// otherwise. Any alignment.
void reduce(const Reduction& reduction, std::span<const std::byte* const> from,
            std::span<std::byte* const> to);

}  // namespace shoal::comm
