// SPDX-License-Identifier: Apache-2.0
// Adam: Kingma & Ba, arXiv:1412.6980; AdamW: Loshchilov & Hutter, arXiv:1711.05101; clipping: Pascanu et al.,
// arXiv:1211.5063. The formulas are those of torch::optim, in its order.
#include "shoal/runtime/update_kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/elementwise_update.h"
#include "shoal/runtime/typed_kernel.h"
#include "shoal/runtime/update_elsewhere.h"
#include "shoal/runtime/update_loops.h"
#include "shoal/runtime/update_rows.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

// Blocks are fixed, and their sums are added in order: the same bits for any number of threads.
static double sum_of_squares(const Slots& slots, const std::vector<std::uint32_t>& gradients) {
  struct Block {
    const at::Tensor* tensor;
    std::int64_t begin, end;
  };
  std::vector<at::Tensor> dense;
  dense.reserve(gradients.size());
  std::vector<Block> blocks;
  for (const auto slot : gradients) {
    const at::Tensor& gradient = slots[slot];
    const at::Tensor& flat =
        gradient.is_non_overlapping_and_dense() ? gradient : dense.emplace_back(gradient.contiguous());
    for (std::int64_t begin = 0; begin < flat.numel(); begin += kGrain)
      blocks.push_back({&flat, begin, std::min(begin + kGrain, flat.numel())});
  }
  std::vector<double> sums(blocks.size());
  const auto sum_blocks = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t at = first; at < last; ++at) {
      const auto& [tensor, begin, end] = blocks[static_cast<std::size_t>(at)];
      AT_DISPATCH_FLOATING_TYPES_AND2(
          at::kHalf, at::kBFloat16, tensor->scalar_type(), "clip", [&, from = begin, to = end] {
            sums[static_cast<std::size_t>(at)] =
                fast_squares(tensor->const_data_ptr<scalar_t>() + from, to - from);
          });
    }
  };
  std::int64_t elements = 0;
  for (const auto& block : blocks) elements += block.end - block.begin;
  if (elements <= kGrain)
    sum_blocks(0, static_cast<std::int64_t>(blocks.size()));
  else
    at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), 1, sum_blocks);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

namespace {

class SumOfSquares final : public Kernel {
 public:
  explicit SumOfSquares(const Compute& compute)
      : gradients_(slots_of(compute, "gradients")), outputs_(compute) {}

  void run(Slots& slots) override {
    if (on_cpu(slots, gradients_))
      return outputs_.put(slots, at::full({}, sum_of_squares(slots, gradients_), at::kDouble));
    const auto norms = at::_foreach_norm(tensors_in(slots, gradients_));
    outputs_.put(slots, at::stack(norms).to(at::kDouble).square().sum());
  }

 private:
  std::vector<std::uint32_t> gradients_;
  Outputs outputs_;
};

class ClipBy final : public Kernel {
 public:
  explicit ClipBy(const Compute& compute)
      : squares_(slots_of(compute, "squares")), max_norm_(number_of(compute, "max_norm")), outputs_(compute) {
    const auto* dtype = std::get_if<DType>(&argument_of(compute, "dtype"));
    SHOAL_CHECK(dtype != nullptr, InvalidInput, compute.op, ": argument dtype is not a dtype");
    dtype_ = aten::to_torch(*dtype);
  }

  void run(Slots& slots) override {
    at::Tensor norm = at::stack(tensors_in(slots, squares_)).sum().sqrt();
    at::Tensor scale = max_norm_ == 0 ? at::ones_like(norm) : (max_norm_ / (norm + 1e-6)).clamp_max(1.0);
    outputs_.put(slots, std::tuple(norm.to(dtype_), scale.to(dtype_)));
  }

 private:
  std::vector<std::uint32_t> squares_;
  double max_norm_;
  at::ScalarType dtype_ = at::kDouble;
  Outputs outputs_;
};

class Clip final : public Kernel {
 public:
  Clip(const Program& program, const Compute& compute)
      : gradients_(slots_of(compute, "gradients")),
        max_norm_(number_of(compute, "max_norm")),
        outputs_(compute) {
    for (const auto& output : compute.outputs)
      if (output) dtype_ = aten::to_torch(program.types.at(output->index).dtype);
  }

  void run(Slots& slots) override {
    if (!on_cpu(slots, gradients_)) return run_elsewhere(slots);
    const double norm = std::sqrt(sum_of_squares(slots, gradients_));
    const double scale = max_norm_ == 0 ? 1.0 : std::min(1.0, max_norm_ / (norm + 1e-6));
    outputs_.put(
        slots, std::tuple(at::full({}, norm, dtype_), at::full({}, std::isnan(norm) ? norm : scale, dtype_)));
  }

 private:
  void run_elsewhere(Slots& slots) const {
    const auto norms = at::_foreach_norm(tensors_in(slots, gradients_));
    const at::Tensor norm = at::linalg_vector_norm(at::stack(norms)).to(dtype_);
    at::Tensor scale = max_norm_ == 0 ? at::ones_like(norm) : (max_norm_ / (norm + 1e-6)).clamp_max(1.0);
    outputs_.put(slots, std::tuple(norm, std::move(scale)));
  }

  std::vector<std::uint32_t> gradients_;
  double max_norm_;
  at::ScalarType dtype_ = at::kFloat;
  Outputs outputs_;
};

class Sgd final : public Kernel {
 public:
  explicit Sgd(const Compute& compute)
      : parameters_(slots_of(compute, "parameters")),
        gradients_(slots_of(compute, "gradients")),
        buffers_(slots_of(compute, "momentum_buffers")),
        coded_(compute),
        lr_(slot_of(compute, "lr")),
        scale_(optional_slot_of(compute, "scale")),
        momentum_(number_of(compute, "momentum")),
        weight_decay_(number_of(compute, "weight_decay")),
        dampening_(has_argument(compute, "dampening") ? number_of(compute, "dampening") : 0),
        step_(dampening_ == 0 ? lr_ : slot_of(compute, "step")),
        nesterov_(truth_of(compute, "nesterov")),
        maximize_(is_set(compute, "maximize")) {
    check_lengths(compute, parameters_.size(), gradients_.size());
    if (!buffers_.empty()) check_lengths(compute, parameters_.size(), buffers_.size());
  }

  void run(Slots& slots) override {
    const double lr = scalar_in(slots, lr_);
    const bool is_first = dampening_ != 0 && scalar_in(slots, step_) == 1;
    if (!coded_.is_on_cpu(slots, parameters_)) return run_elsewhere(slots, lr, is_first);
    const double added = is_first ? 1 : 1 - dampening_;
    const double scale = (maximize_ ? -1 : 1) * scale_in(slots, scale_);
    Rows rows(slots, parameters_, gradients_, {&buffers_}, &coded_);
    for_each_piece(rows, [&]<class T>(const Row&, const Piece<T>& piece) {
      using Real = Math<T>;
      const SgdFactors<Real> factors{static_cast<Real>(lr), static_cast<Real>(scale),
                                     static_cast<Real>(momentum_), static_cast<Real>(weight_decay_),
                                     static_cast<Real>(added)};
      fast_sgd(piece.parameter, piece.gradient, piece.state[0], piece.size, factors, nesterov_);
    });
    rows.finish();
  }

 private:
  void run_elsewhere(const Slots& slots, double lr, bool is_first) const {
    const UpdateSlots which{parameters_, gradients_, {&buffers_}, scale_};
    update_elsewhere(slots, which, Halves::AsTheyAre, [&](UpdateLists& lists) {
      at::_fused_sgd_(lists.parameters, lists.gradients, lists.states[0], weight_decay_, momentum_, lr,
                      dampening_, nesterov_, maximize_, is_first);
    });
  }

  std::vector<std::uint32_t> parameters_, gradients_, buffers_;
  Coded coded_;
  std::uint32_t lr_, scale_;
  double momentum_, weight_decay_, dampening_;
  std::uint32_t step_;
  bool nesterov_, maximize_;
};

class AdamKernel final : public Kernel {
 public:
  explicit AdamKernel(const Compute& compute)
      : parameters_(slots_of(compute, "parameters")),
        gradients_(slots_of(compute, "gradients")),
        averages_(slots_of(compute, "exp_avgs")),
        squares_(slots_of(compute, "exp_avg_sqs")),
        largest_(has_argument(compute, "max_exp_avg_sqs") ? slots_of(compute, "max_exp_avg_sqs")
                                                          : std::vector<std::uint32_t>{}),
        coded_(compute),
        lr_(slot_of(compute, "lr")),
        step_(slot_of(compute, "step")),
        scale_(optional_slot_of(compute, "scale")),
        beta1_(number_of(compute, "beta1")),
        beta2_(number_of(compute, "beta2")),
        eps_(number_of(compute, "eps")),
        weight_decay_(number_of(compute, "weight_decay")),
        decoupled_(truth_of(compute, "decoupled")),
        maximize_(is_set(compute, "maximize")) {
    for (const auto* list : {&gradients_, &averages_, &squares_})
      check_lengths(compute, parameters_.size(), list->size());
    if (!largest_.empty()) check_lengths(compute, parameters_.size(), largest_.size());
  }

  void run(Slots& slots) override {
    const double lr = scalar_in(slots, lr_);
    const double step = scalar_in(slots, step_);
    if (!coded_.is_on_cpu(slots, parameters_)) return run_elsewhere(slots, lr, step);
    const double scale = (maximize_ ? -1 : 1) * scale_in(slots, scale_);
    const auto factors_32 = factors<float>(lr, step, scale);
    const auto factors_64 = factors<double>(lr, step, scale);
    Rows rows(slots, parameters_, gradients_, {&averages_, &squares_, &largest_}, &coded_);
    for_each_piece(rows, [&]<class T>(const Row&, const Piece<T>& piece) {
      const auto& all = [&]() -> const auto& {
        if constexpr (std::is_same_v<T, double>)
          return factors_64;
        else
          return factors_32;
      }();
      fast_adam(piece.parameter, piece.gradient, piece.state[0], piece.state[1], piece.state[2], piece.size,
                all);
    });
    rows.finish();
  }

 private:
  template <class Real>
  AdamFactors<Real> factors(double lr, double step, double scale) const {
    return {.scale = static_cast<Real>(scale),
            .decay_added = static_cast<Real>(decoupled_ ? 0.0 : weight_decay_),
            .decay_kept = static_cast<Real>(decoupled_ ? 1.0 - lr * weight_decay_ : 1.0),
            .beta1 = static_cast<Real>(beta1_),
            .one_minus_beta1 = static_cast<Real>(1.0 - beta1_),
            .beta2 = static_cast<Real>(beta2_),
            .one_minus_beta2 = static_cast<Real>(1.0 - beta2_),
            .inverse_root_of_correction2 = static_cast<Real>(1.0 / std::sqrt(1.0 - std::pow(beta2_, step))),
            .eps = static_cast<Real>(eps_),
            .step_length = static_cast<Real>(lr / (1.0 - std::pow(beta1_, step)))};
  }

  void run_elsewhere(const Slots& slots, double lr, double step) const {
    const UpdateSlots which{parameters_, gradients_, {&averages_, &squares_, &largest_}, scale_};
    const auto fused = decoupled_ ? at::_ops::_fused_adamw_::call : at::_ops::_fused_adam_::call;
    update_elsewhere(slots, which, Halves::AsTheyAre, [&](UpdateLists& lists) {
      const auto options = lists.parameters[0].options().dtype(at::kFloat);
      const std::vector<at::Tensor> steps(lists.parameters.size(), at::full({}, step, options));
      fused(lists.parameters, lists.gradients, lists.states[0], lists.states[1], lists.states[2], steps, lr,
            beta1_, beta2_, weight_decay_, eps_, /*amsgrad=*/!largest_.empty(), maximize_, {}, {});
    });
  }

  std::vector<std::uint32_t> parameters_, gradients_, averages_, squares_, largest_;
  Coded coded_;
  std::uint32_t lr_, step_, scale_;
  double beta1_, beta2_, eps_, weight_decay_;
  bool decoupled_, maximize_;
};

}  // namespace

std::unique_ptr<Kernel> make_clip(const Program& program, const Compute& compute) {
  return std::make_unique<Clip>(program, compute);
}
std::unique_ptr<Kernel> make_sum_of_squares(const Program&, const Compute& compute) {
  return std::make_unique<SumOfSquares>(compute);
}
std::unique_ptr<Kernel> make_clip_by(const Program&, const Compute& compute) {
  return std::make_unique<ClipBy>(compute);
}
std::unique_ptr<Kernel> make_sgd(const Program&, const Compute& compute) {
  return std::make_unique<Sgd>(compute);
}
std::unique_ptr<Kernel> make_adam(const Program&, const Compute& compute) {
  return std::make_unique<AdamKernel>(compute);
}

}  // namespace shoal::runtime
