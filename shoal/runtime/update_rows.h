// SPDX-License-Identifier: Apache-2.0
// All tensors of an update are one long row of elements, cut evenly among the threads:
//
//   fc.weight                      fc.bias  proj.weight
//   |..............................|........|..................|
//   |      thread 0        |      thread 1       |  thread 2   |
//
// so that many small tensors cost no more than one large one. Each element is read and written once.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "shoal/program/program.h"
#include "shoal/runtime/kernel.h"
#include "shoal/runtime/stochastic_rounding.h"
#include "shoal/sharding/state_blocks.h"

namespace shoal::runtime {

inline constexpr std::int64_t kGrain = 32768;  // elements; a thread is not worth waking for fewer

// One tensor of each list, as flat memory in the same order of elements; row-major where state is codes, or
// chance rounds.
struct Row {
  at::ScalarType dtype;  // that the update computes in: the parameter's, but for narrow weights
  std::int64_t size;
  void* parameter;
  const void* gradient;
  void* state[3];
  at::ScalarType state_dtype;  // as above, BFloat16, or Byte: codes
  float* maxima[3];            // of codes
  bool is_signed[3];           // likewise
  bool is_narrow;              // the parameter is BFloat16, and the update computes in Float
  void* compensation;          // of such; null: it is rounded by chance
  const Draw* draw;            // for what is BFloat16 and rounded by chance; null: nothing is; borrowed
};

// Of an update whose state is codes: lists of their maxima, and whether the codes have a sign. And of one
// whose weights or state are narrow.
struct Coded {
  explicit Coded(const program::Compute& compute);
  bool any() const { return !signs.empty(); }
  // Whether the parameters are in main memory; throws Infeasible for codes and narrow weights elsewhere.
  bool is_on_cpu(const Slots& slots, const std::vector<std::uint32_t>& parameters) const;
  // Whether it is bfloat16, and the update computes in float. Others may be beside it.
  bool is_narrow(const at::Tensor& parameter) const;
  std::vector<std::uint32_t> maxima;  // of the first state of all parameters, then of the next
  std::vector<std::int64_t> signs;    // by state
  Narrow narrow;
};

// The rows of an update. Tensors that have gaps, or whose elements lie in another order than their
// parameter's, are brought over first and carried back by `finish`.
class Rows {
 public:
  Rows(Slots& slots, const std::vector<std::uint32_t>& parameters,
       const std::vector<std::uint32_t>& gradients,
       const std::vector<const std::vector<std::uint32_t>*>& states, const Coded* coded = nullptr);

  const std::vector<Row>& all() const { return rows_; }

  // Calls visit(row, begin, end) for pieces of rows that make up all of them, in parallel.
  template <class Visit>
  void for_each_piece(const Visit& visit) const {
    if (rows_.empty()) return;
    at::parallel_for(0, ends_.back(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      auto index = static_cast<std::size_t>(std::ranges::upper_bound(ends_, begin) - ends_.begin());
      while (begin < end) {
        const std::int64_t first = ends_[index] - rows_[index].size;
        const std::int64_t to = std::min(end, ends_[index]);
        const auto [from, until] = whole_blocks(rows_[index], begin - first, to - first);
        if (from < until) visit(rows_[index], from, until);
        begin = std::max(begin, to);
        ++index;
      }
    });
  }

  void finish();

 private:
  // Who has a block's first element has all of it.
  static std::pair<std::int64_t, std::int64_t> whole_blocks(const Row& row, std::int64_t begin,
                                                            std::int64_t end) {
    if (row.state_dtype != at::kByte) return {begin, end};
    const auto up = [&](std::int64_t at) {
      constexpr std::int64_t kBlock = sharding::kStateBlock;
      return std::min(row.size, (at + kBlock - 1) / kBlock * kBlock);
    };
    return {up(begin), up(end)};
  }
  const at::Tensor& changed(const at::Tensor& original, at::Tensor copy);
  const void* read(const at::Tensor& tensor, const at::Tensor& layout, at::ScalarType dtype);
  void* written(const at::Tensor& tensor, const at::Tensor& layout, at::ScalarType dtype);

  std::vector<Row> rows_;
  std::vector<std::int64_t> ends_;  // of each row in the long row of all
  std::vector<std::pair<at::Tensor, at::Tensor>> carried_;
  std::vector<at::Tensor> kept_;
  std::vector<Draw> draws_;
};

double scalar_in(const Slots& slots, std::uint32_t slot);
double scale_in(const Slots& slots, std::uint32_t slot);  // 1 where there is none
std::vector<at::Tensor> tensors_in(const Slots& slots, const std::vector<std::uint32_t>& list);
void check_lengths(const program::Compute& compute, std::size_t parameters, std::size_t others);
bool on_cpu(const Slots& slots, const std::vector<std::uint32_t>& list);

}  // namespace shoal::runtime
