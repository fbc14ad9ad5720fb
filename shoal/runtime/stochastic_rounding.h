// SPDX-License-Identifier: Apache-2.0
// What an update keeps in bfloat16, though it computes in more: rounded so that small changes count.
//
// With a compensation (Kahan, CACM 8, 1965) weight + compensation is the value; what the weight loses by
// rounding the compensation keeps, to 8 bits. Without one a value is rounded up or down by chance, up as
// often as it is near (Gupta et al., arXiv:1502.02551), so that a change smaller than the last bit counts on
// average: of a weight a small step, of an average a slow decay. The chance is a function of seed, update,
// parameter, which of its tensors, and the element's place in the whole tensor, so that ranks that have parts
// round as one device does.
#pragma once

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "shoal/program/program.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// Where the elements of a rank's part are in the whole tensor, both row-major.
class Places {
 public:
  // All of it.
  Places() = default;
  // Reads dims, shape, and for each dim its ranges: their number, begin and end of each. Returns what follows.
  std::span<const std::int64_t> read(std::span<const std::int64_t> words);
  // The place of an element, and how many from it on have the places after it.
  struct Run {
    std::int64_t place, size;
  };
  Run from(std::int64_t element) const;

 private:
  std::int64_t place_in(std::size_t dim, std::int64_t index) const;

  std::vector<std::int64_t> shape_, sizes_;               // of the whole, and of the part
  std::vector<std::vector<std::int64_t>> begins_, ends_;  // by dim
};

struct Draw {
  std::uint64_t seed = 0, update = 0;
  std::uint32_t parameter = 0;
  Places places = {};
};

void load_weights(const c10::BFloat16* weights, const c10::BFloat16* compensations, float* to,
                  std::int64_t size);
void store_compensated(const float* from, c10::BFloat16* weights, c10::BFloat16* compensations,
                       std::int64_t size);
// `tensor`: which of the parameter's, 0 the weight itself; `first`: where the first of the elements is in this
// rank's part of it.
void store_stochastic(const float* from, const Draw& draw, std::uint32_t tensor, std::int64_t first,
                      c10::BFloat16* to, std::int64_t size);
template <class T>
void store_stochastic(const T* from, const Draw& draw, std::uint32_t tensor, std::int64_t first,
                      c10::BFloat16* to, std::int64_t size) {
  float buffer[256];
  for (std::int64_t done = 0; done < size; done += std::ssize(buffer)) {
    const std::int64_t count = std::min(size - done, std::ssize(buffer));
    for (std::int64_t i = 0; i < count; ++i) buffer[i] = static_cast<float>(from[done + i]);
    store_stochastic(buffer, draw, tensor, first + done, to + done, count);
  }
}

// How an update says it; empty where all that it keeps has the type that it computes in.
struct Narrow {
  explicit Narrow(const program::Compute& compute);
  bool any() const { return !compensations.empty() || !parameters.empty(); }
  Draw draw(const Slots& slots, std::size_t row) const;
  std::vector<std::uint32_t> compensations;
  std::vector<std::int64_t> parameters;  // of Draw; none: nothing is left to chance
  std::vector<Places> places;
  std::uint32_t seed = 0, step = 0;
};

}  // namespace shoal::runtime
