// SPDX-License-Identifier: Apache-2.0
// Indices that are not here become one that ATen's kernels pass over: -1 for embeddings, whose padding it is
// said to be, and kIgnored for losses.
#include "shoal/runtime/part_kernels.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/typed_kernel.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

static constexpr std::int64_t kIgnored = -100;
static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::min();  // no index is skipped

namespace {

// Where the part begins, and what of.
struct Place {
  explicit Place(const Compute& compute)
      : op(compute.op), first(integer_of(compute, "first")), whole(integer_of(compute, "whole")) {}

  // Indices counted from `first`, and `otherwise` for those that are elsewhere or are `skipped`.
  at::Tensor local(const at::Tensor& indices, std::int64_t size, std::int64_t otherwise,
                   std::int64_t skipped) const {
    const at::Tensor index = indices.to(at::kLong);
    const at::Tensor outside = index.lt(0).bitwise_or_(index.ge(whole)).bitwise_and_(index.ne(skipped));
    SHOAL_CHECK(!outside.any().item<bool>(), InvalidInput, op, ": index ",
                index.masked_select(outside)[0].item<std::int64_t>(), " is not within 0 … ", whole - 1);
    const at::Tensor moved = index - first;
    const at::Tensor elsewhere = moved.lt(0).bitwise_or_(moved.ge(size)).bitwise_or_(index.eq(skipped));
    return moved.masked_fill(elsewhere, otherwise);
  }

  std::string op;
  std::int64_t first;
  std::int64_t whole;
};

}  // namespace

std::unique_ptr<Kernel> make_embedding_part(const Program&, const Compute& compute) {
  return kernel_of([place = Place(compute), weight = slot_of(compute, "weight"),
                    indices = slot_of(compute, "indices"), outputs = Outputs(compute)](Slots& slots) {
    const at::Tensor& rows = slots[weight];
    const at::Tensor local = place.local(slots[indices], rows.size(0), -1, kNone);
    if (rows.size(0) == 0) {
      auto sizes = local.sizes().vec();
      sizes.push_back(rows.size(1));
      outputs.put(slots, at::zeros(sizes, rows.options()));
      return;
    }
    at::Tensor made = at::embedding(rows, local.clamp_min(0));
    made.masked_fill_(local.lt(0).unsqueeze(-1), 0);
    outputs.put(slots, std::move(made));
  });
}

std::unique_ptr<Kernel> make_embedding_backward_part(const Program&, const Compute& compute) {
  return kernel_of([place = Place(compute), grad = slot_of(compute, "grad_output"),
                    indices = slot_of(compute, "indices"), num_weights = integer_of(compute, "num_weights"),
                    padding = integer_of(compute, "padding_idx"), outputs = Outputs(compute)](Slots& slots) {
    const at::Tensor local = place.local(slots[indices], num_weights, -1, padding < 0 ? kNone : padding);
    outputs.put(slots, at::embedding_dense_backward(slots[grad], local, num_weights, /*padding_idx=*/-1,
                                                    /*scale_grad_by_freq=*/false));
  });
}

std::unique_ptr<Kernel> make_nll_loss_part(const Program&, const Compute& compute) {
  return kernel_of([place = Place(compute), self = slot_of(compute, "self"),
                    target = slot_of(compute, "target"), reduction = integer_of(compute, "reduction"),
                    ignored = integer_of(compute, "ignore_index"), outputs = Outputs(compute)](Slots& slots) {
    const at::Tensor& scores = slots[self];
    const at::Tensor& targets = slots[target];
    const at::Tensor local = place.local(targets, scores.size(-1), kIgnored, ignored);
    const at::Tensor total = reduction == at::Reduction::None
                                 ? at::zeros({}, scores.options())
                                 : targets.ne(ignored).sum().to(scores.scalar_type());
    const bool each = reduction == at::Reduction::None;
    at::Tensor loss = scores.numel() == 0
                          ? at::zeros(each ? targets.sizes() : at::IntArrayRef(), scores.options())
                          : std::get<0>(at::nll_loss_forward(scores, local, {}, reduction, kIgnored));
    outputs.put(slots, std::tuple(std::move(loss), total));
  });
}

std::unique_ptr<Kernel> make_nll_loss_backward_part(const Program&, const Compute& compute) {
  return kernel_of([place = Place(compute), grad = slot_of(compute, "grad_output"),
                    self = slot_of(compute, "self"), target = slot_of(compute, "target"),
                    reduction = integer_of(compute, "reduction"),
                    ignored = integer_of(compute, "ignore_index"), total = slot_of(compute, "total_weight"),
                    outputs = Outputs(compute)](Slots& slots) {
    const at::Tensor& scores = slots[self];
    const at::Tensor local = place.local(slots[target], scores.size(-1), kIgnored, ignored);
    outputs.put(slots, scores.numel() == 0 ? at::zeros_like(scores)
                                           : at::nll_loss_backward(slots[grad], scores, local, {}, reduction,
                                                                   kIgnored, slots[total]));
  });
}

}  // namespace shoal::runtime
