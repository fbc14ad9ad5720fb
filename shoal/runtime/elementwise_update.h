// SPDX-License-Identifier: Apache-2.0
// An update that does the same to each element of all tensors. A rule says its lists of state, whether it
// counts, what it does to a piece of a row, and to whole lists on a device; one kernel runs it.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/ops/_foreach_neg.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shoal/runtime/arguments.h"
#include "shoal/runtime/state_blocks.h"
#include "shoal/runtime/typed_kernel.h"
#include "shoal/runtime/update_elsewhere.h"
#include "shoal/runtime/update_rows.h"

namespace shoal::runtime {

template <class T>
struct Piece {
  T* parameter;
  const T* gradient;
  std::array<T*, 3> state;  // null: the settings do without
  std::int64_t size;
};

template <class T>
Piece<T> piece_of(const Row& row, std::int64_t begin, std::int64_t end) {
  Piece<T> piece{
      static_cast<T*>(row.parameter) + begin, static_cast<const T*>(row.gradient) + begin, {}, end - begin};
  for (std::size_t i = 0; i < piece.state.size(); ++i)
    piece.state[i] = row.state[i] == nullptr ? nullptr : static_cast<T*>(row.state[i]) + begin;
  return piece;
}

// Parameters of a piece that are in another type.
inline void load_parameters(const Row& row, std::int64_t begin, float* to, std::int64_t size) {
  const auto* of = static_cast<const c10::BFloat16*>(row.compensation);
  load_weights(static_cast<const c10::BFloat16*>(row.parameter) + begin, of == nullptr ? of : of + begin, to,
               size);
}
inline void store_parameters(const Row& row, std::int64_t begin, const float* from, std::int64_t size) {
  auto* to = static_cast<c10::BFloat16*>(row.parameter) + begin;
  if (row.compensation == nullptr)
    store_stochastic(from, *row.draw, 0, begin, to, size);
  else
    store_compensated(from, to, static_cast<c10::BFloat16*>(row.compensation) + begin, size);
}

// Calls visit(row, piece) for pieces that make up all rows, in parallel: each with all in the type that the
// row computes in. What is kept in another is brought over block by block, and back.
//
//   exp_avg bf16[n]  |1024|1024|…      load, visit, store
//                      ↓    ↑
//                    T[1024], on the stack
template <class Visit>
void for_each_piece(const Rows& rows, const Visit& visit) {
  rows.for_each_piece([&](const Row& row, std::int64_t begin, std::int64_t end) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, row.dtype, "update", [&] {
      if (row.state_dtype == row.dtype && !row.is_narrow)
        return visit(row, piece_of<scalar_t>(row, begin, end));
      scalar_t buffers[std::size(Row{}.state)][kStateBuffer];
      float weights[kStateBuffer];
      for (; begin < end; begin += kStateBuffer) {
        const std::int64_t to = std::min(end, begin + kStateBuffer);
        Piece<scalar_t> piece = piece_of<scalar_t>(row, begin, to);
        if constexpr (std::is_same_v<scalar_t, float>)
          if (row.is_narrow) {
            load_parameters(row, begin, weights, piece.size);
            piece.parameter = weights;
          }
        for (std::size_t i = 0; i < piece.state.size(); ++i) {
          if (row.state[i] == nullptr || row.state_dtype == row.dtype) continue;
          piece.state[i] = buffers[i];
          if (row.state_dtype == at::kByte)
            load_codes(static_cast<const std::uint8_t*>(row.state[i]) + begin,
                       row.maxima[i] + begin / sharding::kStateBlock, row.is_signed[i], buffers[i],
                       piece.size);
          else
            load_state(static_cast<const c10::BFloat16*>(row.state[i]) + begin, buffers[i], piece.size);
        }
        visit(row, piece);
        if constexpr (std::is_same_v<scalar_t, float>)
          if (row.is_narrow) store_parameters(row, begin, weights, piece.size);
        for (std::size_t i = 0; i < piece.state.size(); ++i) {
          if (row.state[i] == nullptr || row.state_dtype == row.dtype) continue;
          if (row.state_dtype == at::kByte)
            store_codes(buffers[i], row.is_signed[i], static_cast<std::uint8_t*>(row.state[i]) + begin,
                        row.maxima[i] + begin / sharding::kStateBlock, piece.size);
          else
            store_stochastic(buffers[i], *row.draw, static_cast<std::uint32_t>(i + 1), begin,
                             static_cast<c10::BFloat16*>(row.state[i]) + begin, piece.size);
        }
      }
    });
  });
}

// What is another number at each update. `scale`: of gradients, negative where the loss is maximised, and
// already in those of UpdateLists; `step`: which update this is, from 1, for rules that count.
struct Now {
  double lr, scale, step;
};

std::vector<std::vector<std::uint32_t>> lists_of(const program::Compute& compute,
                                                 std::span<const std::string_view> names,
                                                 std::size_t num_parameters);
std::vector<const std::vector<std::uint32_t>*> pointers_to(
    const std::vector<std::vector<std::uint32_t>>& lists);

template <class Rule>
class ElementwiseUpdate final : public Kernel {
  static_assert(Rule::kStates.size() <= std::size(Row{}.state), "update_rows.h: a Row has too few states");

 public:
  explicit ElementwiseUpdate(const program::Compute& compute)
      : rule_(compute),
        parameters_(slots_of(compute, "parameters")),
        gradients_(slots_of(compute, "gradients")),
        states_(lists_of(compute, Rule::kStates, parameters_.size())),
        coded_(compute),
        lr_(slot_of(compute, "lr")),
        step_(Rule::kCounts || has_argument(compute, "step") ? slot_of(compute, "step") : kNoSlot),
        scale_(optional_slot_of(compute, "scale")),
        sign_(is_set(compute, "maximize") ? -1 : 1) {
    check_lengths(compute, parameters_.size(), gradients_.size());
  }

  void run(Slots& slots) override {
    Now now{scalar_in(slots, lr_), 1, step_ == kNoSlot ? 1 : scalar_in(slots, step_)};
    if (!coded_.is_on_cpu(slots, parameters_)) return run_elsewhere(slots, now);
    now.scale = sign_ * scale_in(slots, scale_);
    Rows rows(slots, parameters_, gradients_, pointers_to(states_), &coded_);
    for_each_piece(rows, [&](const Row&, const auto& piece) { rule_.apply(piece, now); });
    rows.finish();
  }

 private:
  void run_elsewhere(const Slots& slots, const Now& now) const {
    const UpdateSlots which{parameters_, gradients_, pointers_to(states_), scale_};
    update_elsewhere(slots, which, Halves::AsFloat, [&](UpdateLists& lists) {
      if (sign_ < 0) lists.gradients = at::_foreach_neg(lists.gradients);
      rule_.apply(lists, now);
    });
  }

  Rule rule_;
  std::vector<std::uint32_t> parameters_, gradients_;
  std::vector<std::vector<std::uint32_t>> states_;
  Coded coded_;
  std::uint32_t lr_, step_, scale_;
  double sign_;
};

}  // namespace shoal::runtime
