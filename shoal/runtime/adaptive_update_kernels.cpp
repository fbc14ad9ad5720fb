// SPDX-License-Identifier: Apache-2.0
// Updates beside SGD and Adam.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/elementwise_update.h"
#include "shoal/runtime/update_elsewhere.h"
#include "shoal/runtime/update_kernels.h"
#include "shoal/runtime/update_loops.h"
#include "shoal/runtime/update_rows.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

std::vector<std::vector<std::uint32_t>> lists_of(const Compute& compute,
                                                 std::span<const std::string_view> names,
                                                 std::size_t num_parameters) {
  std::vector<std::vector<std::uint32_t>> lists;
  for (const std::string_view name : names) {
    lists.push_back(slots_of(compute, name));
    if (!lists.back().empty()) check_lengths(compute, num_parameters, lists.back().size());
  }
  return lists;
}

std::vector<const std::vector<std::uint32_t>*> pointers_to(
    const std::vector<std::vector<std::uint32_t>>& lists) {
  std::vector<const std::vector<std::uint32_t>*> pointers;
  for (const auto& list : lists) pointers.push_back(&list);
  return pointers;
}

namespace {

struct Adagrad {
  static constexpr std::array<std::string_view, 1> kStates = {"sums"};
  static constexpr bool kCounts = false;
  explicit Adagrad(const Compute& compute)
      : eps(number_of(compute, "eps")),
        weight_decay(number_of(compute, "weight_decay")),
        lr_decay(has_argument(compute, "lr_decay") ? number_of(compute, "lr_decay") : 0) {}
  template <class T>
  void apply(const Piece<T>& piece, const Now& now) const {
    using Real = Math<T>;
    fast_adagrad(piece.parameter, piece.gradient, piece.state[0], piece.size,
                 AdagradFactors<Real>{static_cast<Real>(rate(now)), static_cast<Real>(now.scale),
                                      static_cast<Real>(eps), static_cast<Real>(weight_decay)});
  }
  void apply(UpdateLists& lists, const Now& now) const {
    const std::vector<at::Tensor> gradients = decayed(lists, weight_decay);
    at::_foreach_addcmul_(lists.states[0], gradients, gradients, 1);
    at::_foreach_addcdiv_(lists.parameters, gradients, root(lists.states[0], eps), -rate(now));
  }
  double rate(const Now& now) const { return now.lr / (1 + (now.step - 1) * lr_decay); }
  double eps, weight_decay, lr_decay;
};

struct Rmsprop {
  static constexpr std::array<std::string_view, 3> kStates = {"square_avgs", "momentum_buffers", "grad_avgs"};
  static constexpr bool kCounts = false;
  explicit Rmsprop(const Compute& compute)
      : alpha(number_of(compute, "alpha")),
        eps(number_of(compute, "eps")),
        momentum(number_of(compute, "momentum")),
        weight_decay(number_of(compute, "weight_decay")) {}
  template <class T>
  void apply(const Piece<T>& piece, const Now& now) const {
    using Real = Math<T>;
    fast_rmsprop(
        piece.parameter, piece.gradient, piece.state[0], piece.state[1], piece.state[2], piece.size,
        RmspropFactors<Real>{static_cast<Real>(now.lr), static_cast<Real>(now.scale),
                             static_cast<Real>(alpha), static_cast<Real>(1 - alpha), static_cast<Real>(eps),
                             static_cast<Real>(momentum), static_cast<Real>(weight_decay)});
  }
  void apply(UpdateLists& lists, const Now& now) const {
    const std::vector<at::Tensor> gradients = decayed(lists, weight_decay);
    const auto &squares = lists.states[0], &buffers = lists.states[1], &averages = lists.states[2];
    at::_foreach_mul_(squares, alpha);
    at::_foreach_addcmul_(squares, gradients, gradients, 1 - alpha);
    std::vector<at::Tensor> variances = squares;
    if (!averages.empty()) {
      at::_foreach_mul_(averages, alpha);
      at::_foreach_add_(averages, gradients, 1 - alpha);
      variances = at::_foreach_addcmul(squares, averages, averages, -1);
    }
    const auto divisors = root(variances, eps);
    if (buffers.empty()) return at::_foreach_addcdiv_(lists.parameters, gradients, divisors, -now.lr);
    at::_foreach_mul_(buffers, momentum);
    at::_foreach_addcdiv_(buffers, gradients, divisors);
    at::_foreach_add_(lists.parameters, buffers, -now.lr);
  }
  double alpha, eps, momentum, weight_decay;
};

struct Lion {
  static constexpr std::array<std::string_view, 1> kStates = {"exp_avgs"};
  static constexpr bool kCounts = false;
  explicit Lion(const Compute& compute)
      : beta1(number_of(compute, "beta1")),
        beta2(number_of(compute, "beta2")),
        weight_decay(number_of(compute, "weight_decay")) {}
  template <class T>
  void apply(const Piece<T>& piece, const Now& now) const {
    using Real = Math<T>;
    fast_lion(piece.parameter, piece.gradient, piece.state[0], piece.size,
              LionFactors<Real>{static_cast<Real>(now.lr), static_cast<Real>(now.scale),
                                static_cast<Real>(1 - now.lr * weight_decay), static_cast<Real>(beta1),
                                static_cast<Real>(1 - beta1), static_cast<Real>(beta2),
                                static_cast<Real>(1 - beta2)});
  }
  void apply(UpdateLists& lists, const Now& now) const {
    auto directions = at::_foreach_mul(lists.states[0], beta1);
    at::_foreach_add_(directions, lists.gradients, 1 - beta1);
    at::_foreach_sign_(directions);
    at::_foreach_mul_(lists.states[0], beta2);
    at::_foreach_add_(lists.states[0], lists.gradients, 1 - beta2);
    at::_foreach_mul_(lists.parameters, 1 - now.lr * weight_decay);
    at::_foreach_add_(lists.parameters, directions, -now.lr);
  }
  double beta1, beta2, weight_decay;
};

// Two passes: the first updates the moments and measures parameter and direction, the second moves the
// parameter by the ratio of the two. Blocks are fixed and their sums added in order: the same bits for any
// number of threads.
class LambUpdate {
 public:
  // `gradients`: the argument; of the second pass, which reads none, the parameters.
  explicit LambUpdate(const Compute& compute, std::string_view gradients = "gradients")
      : parameters_(slots_of(compute, "parameters")),
        gradients_(slots_of(compute, gradients)),
        states_(lists_of(compute, kStates, parameters_.size())),
        lr_(slot_of(compute, "lr")),
        step_(slot_of(compute, "step")),
        scale_(optional_slot_of(compute, "scale")),
        beta1_(number_of(compute, "beta1")),
        beta2_(number_of(compute, "beta2")),
        eps_(number_of(compute, "eps")),
        weight_decay_(number_of(compute, "weight_decay")) {
    check_lengths(compute, parameters_.size(), gradients_.size());
  }

  bool is_on_cpu(const Slots& slots) const { return on_cpu(slots, parameters_); }
  Rows rows(Slots& slots) const { return {slots, parameters_, gradients_, pointers_to(states_)}; }

  // The first pass.
  std::vector<LambNorms> moments(const Slots& slots, const Rows& rows) const {
    const double step = scalar_in(slots, step_), scale = scale_in(slots, scale_);
    const auto blocks = blocks_of(rows);
    std::vector<LambNorms> of_blocks(blocks.size()), of_rows(rows.all().size());
    for_each_block(blocks, [&](std::size_t at) {
      const Row& row = rows.all()[blocks[at].row];
      AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, row.dtype, "lamb", [&] {
        const auto piece = piece_of<scalar_t>(row, blocks[at].begin, blocks[at].end);
        of_blocks[at] = lamb_moments(piece.parameter, piece.gradient, piece.state[0], piece.state[1],
                                     piece.size, factors<Math<scalar_t>>(step, scale));
      });
    });
    for (std::size_t at = 0; at < blocks.size(); ++at) {
      of_rows[blocks[at].row].parameter += of_blocks[at].parameter;
      of_rows[blocks[at].row].direction += of_blocks[at].direction;
    }
    return of_rows;
  }

  // The second pass.
  void move(const Slots& slots, const Rows& rows, const std::vector<LambNorms>& of_rows) const {
    const double lr = scalar_in(slots, lr_), step = scalar_in(slots, step_), scale = scale_in(slots, scale_);
    const auto blocks = blocks_of(rows);
    for_each_block(blocks, [&](std::size_t at) {
      const Row& row = rows.all()[blocks[at].row];
      const LambNorms& norms = of_rows[blocks[at].row];
      const bool has_ratio = norms.parameter > 0 && norms.direction > 0;
      const double length = lr * (has_ratio ? std::sqrt(norms.parameter) / std::sqrt(norms.direction) : 1.0);
      AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, row.dtype, "lamb", [&] {
        const auto piece = piece_of<scalar_t>(row, blocks[at].begin, blocks[at].end);
        lamb_step(piece.parameter, piece.state[0], piece.state[1], piece.size,
                  static_cast<Math<scalar_t>>(length), factors<Math<scalar_t>>(step, scale));
      });
    });
  }

  void run_elsewhere(const Slots& slots) const {
    run_elsewhere(slots, scalar_in(slots, lr_), factors<double>(scalar_in(slots, step_), 1));
  }

 private:
  static constexpr std::array<std::string_view, 2> kStates = {"exp_avgs", "exp_avg_sqs"};

  struct Block {
    std::size_t row;
    std::int64_t begin, end;
  };
  static std::vector<Block> blocks_of(const Rows& rows) {
    std::vector<Block> blocks;
    for (std::size_t row = 0; row < rows.all().size(); ++row)
      for (std::int64_t begin = 0; begin < rows.all()[row].size; begin += kGrain)
        blocks.push_back({row, begin, std::min(begin + kGrain, rows.all()[row].size)});
    return blocks;
  }
  template <class Visit>
  static void for_each_block(const std::vector<Block>& blocks, const Visit& visit) {
    at::parallel_for(
        0, static_cast<std::int64_t>(blocks.size()), 1, [&](std::int64_t first, std::int64_t last) {
          for (auto at = static_cast<std::size_t>(first); at < static_cast<std::size_t>(last); ++at)
            visit(at);
        });
  }

  void run_elsewhere(const Slots& slots, double lr, const LambFactors<double>& factors) const {
    const UpdateSlots which{parameters_, gradients_, pointers_to(states_), scale_};
    update_elsewhere(slots, which, Halves::AsFloat, [&](UpdateLists& lists) {
      const auto &averages = lists.states[0], &squares = lists.states[1];
      at::_foreach_mul_(averages, factors.beta1);
      at::_foreach_add_(averages, lists.gradients, factors.one_minus_beta1);
      at::_foreach_mul_(squares, factors.beta2);
      at::_foreach_addcmul_(squares, lists.gradients, lists.gradients, factors.one_minus_beta2);
      auto divisors = at::_foreach_sqrt(squares);
      at::_foreach_mul_(divisors, factors.inverse_root_of_correction2);
      at::_foreach_add_(divisors, factors.eps);
      auto directions = at::_foreach_mul(averages, factors.inverse_correction1);
      at::_foreach_div_(directions, divisors);
      at::_foreach_add_(directions, lists.parameters, factors.weight_decay);
      const at::Tensor of_parameters = at::stack(at::_foreach_norm(lists.parameters));
      const at::Tensor of_directions = at::stack(at::_foreach_norm(directions));
      const at::Tensor has_ratio = of_parameters.gt(0).logical_and_(of_directions.gt(0));
      const at::Tensor ratios = at::where(has_ratio, of_parameters / of_directions, 1.0);
      at::_foreach_mul_(directions, ratios.unbind());
      at::_foreach_add_(lists.parameters, directions, -lr);
    });
  }

  template <class Real>
  LambFactors<Real> factors(double step, double scale) const {
    return {.scale = static_cast<Real>(scale),
            .beta1 = static_cast<Real>(beta1_),
            .one_minus_beta1 = static_cast<Real>(1 - beta1_),
            .beta2 = static_cast<Real>(beta2_),
            .one_minus_beta2 = static_cast<Real>(1 - beta2_),
            .inverse_correction1 = static_cast<Real>(1 / (1 - std::pow(beta1_, step))),
            .inverse_root_of_correction2 = static_cast<Real>(1 / std::sqrt(1 - std::pow(beta2_, step))),
            .eps = static_cast<Real>(eps_),
            .weight_decay = static_cast<Real>(weight_decay_)};
  }

  std::vector<std::uint32_t> parameters_, gradients_;
  std::vector<std::vector<std::uint32_t>> states_;
  std::uint32_t lr_, step_, scale_;
  double beta1_, beta2_, eps_, weight_decay_;
};

class Lamb final : public Kernel {
 public:
  explicit Lamb(const Compute& compute) : update_(compute) {}

  void run(Slots& slots) override {
    if (!update_.is_on_cpu(slots)) return update_.run_elsewhere(slots);
    Rows rows = update_.rows(slots);
    update_.move(slots, rows, update_.moments(slots, rows));
    rows.finish();
  }

 private:
  LambUpdate update_;
};

void check_on_cpu(const LambUpdate& update, const Slots& slots) {
  SHOAL_CHECK(update.is_on_cpu(slots), Infeasible,
              "shoal::lamb: of parts of tensors it updates those in main memory only; keep the model there");
}

class LambMoments final : public Kernel {
 public:
  explicit LambMoments(const Compute& compute) : update_(compute) {
    const auto* adds = std::get_if<std::vector<std::int64_t>>(&argument_of(compute, "adds"));
    SHOAL_CHECK(adds != nullptr, InvalidInput, compute.op, ": adds is no list of integers");
    check_lengths(compute, slots_of(compute, "parameters").size(), adds->size());
    adds_ = *adds;
    norms_ = compute.outputs.back().value().index;
  }

  void run(Slots& slots) override {
    check_on_cpu(update_, slots);
    Rows rows = update_.rows(slots);
    const auto norms = update_.moments(slots, rows);
    const at::Tensor made = at::zeros({2 * static_cast<std::int64_t>(norms.size())}, at::kDouble);
    auto* sums = made.mutable_data_ptr<double>();
    for (std::size_t row = 0; row < norms.size(); ++row) {
      if (adds_[row] == 0) continue;
      sums[2 * row] = norms[row].parameter;
      sums[2 * row + 1] = norms[row].direction;
    }
    rows.finish();
    slots[norms_] = made;
  }

 private:
  LambUpdate update_;
  std::vector<std::int64_t> adds_;
  std::uint32_t norms_;
};

class LambStep final : public Kernel {
 public:
  explicit LambStep(const Compute& compute)
      : update_(compute, "parameters"), norms_(slot_of(compute, "norms")) {}

  void run(Slots& slots) override {
    check_on_cpu(update_, slots);
    Rows rows = update_.rows(slots);
    const auto* sums = slots[norms_].const_data_ptr<double>();
    std::vector<LambNorms> norms;
    for (std::size_t row = 0; row < rows.all().size(); ++row)
      norms.push_back({sums[2 * row], sums[2 * row + 1]});
    update_.move(slots, rows, norms);
    rows.finish();
  }

 private:
  LambUpdate update_;
  std::uint32_t norms_;
};

}  // namespace

std::unique_ptr<Kernel> make_adagrad(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Adagrad>>(compute);
}
std::unique_ptr<Kernel> make_lamb(const Program&, const Compute& compute) {
  return std::make_unique<Lamb>(compute);
}
std::unique_ptr<Kernel> make_lamb_moments(const Program&, const Compute& compute) {
  return std::make_unique<LambMoments>(compute);
}
std::unique_ptr<Kernel> make_lamb_step(const Program&, const Compute& compute) {
  return std::make_unique<LambStep>(compute);
}
std::unique_ptr<Kernel> make_lion(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Lion>>(compute);
}
std::unique_ptr<Kernel> make_rmsprop(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Rmsprop>>(compute);
}

}  // namespace shoal::runtime
