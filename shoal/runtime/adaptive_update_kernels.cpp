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

#include <cmath>
#include <sstream>
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
// A group of ranks that have parts of the tensors, and whose part of each counts.
struct SharedNorms {
  Group group;
  std::vector<bool> adds;
};

class Lamb final : public Kernel {
 public:
  explicit Lamb(const Compute& compute, std::vector<SharedNorms> shared = {})
      : shared_(std::move(shared)),
        parameters_(slots_of(compute, "parameters")),
        gradients_(slots_of(compute, "gradients")),
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

  void run(Slots& slots) override {
    const double lr = scalar_in(slots, lr_);
    const double step = scalar_in(slots, step_);
    if (!on_cpu(slots, parameters_)) return run_elsewhere(slots, lr, factors<double>(step, 1));
    const double scale = scale_in(slots, scale_);
    Rows rows(slots, parameters_, gradients_, pointers_to(states_));
    struct Block {
      std::size_t row;
      std::int64_t begin, end;
    };
    std::vector<Block> blocks;
    for (std::size_t row = 0; row < rows.all().size(); ++row)
      for (std::int64_t begin = 0; begin < rows.all()[row].size; begin += kGrain)
        blocks.push_back({row, begin, std::min(begin + kGrain, rows.all()[row].size)});
    std::vector<LambNorms> of_blocks(blocks.size()), of_rows(rows.all().size());
    const auto for_each_block = [&](const auto& visit) {
      at::parallel_for(
          0, static_cast<std::int64_t>(blocks.size()), 1, [&](std::int64_t first, std::int64_t last) {
            for (auto at = static_cast<std::size_t>(first); at < static_cast<std::size_t>(last); ++at)
              visit(at);
          });
    };
    for_each_block([&](std::size_t at) {
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
    sum_over_ranks(of_rows);
    for_each_block([&](std::size_t at) {
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
    rows.finish();
  }

 private:
  static constexpr std::array<std::string_view, 2> kStates = {"exp_avgs", "exp_avg_sqs"};

  void run_elsewhere(const Slots& slots, double lr, const LambFactors<double>& factors) const {
    SHOAL_CHECK(
        shared_.empty(), Infeasible,
        "shoal::lamb: of parts of tensors it updates those in main memory only; keep the model there");
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

  void sum_over_ranks(std::vector<LambNorms>& norms) const {
    for (const auto& [group, adds] : shared_) {
      std::vector<double> sums;
      for (std::size_t row = 0; row < norms.size(); ++row) {
        sums.push_back(adds[row] ? norms[row].parameter : 0);
        sums.push_back(adds[row] ? norms[row].direction : 0);
      }
      const comm::Buffer buffer{sums.data(), static_cast<std::int64_t>(sums.size()), DType::Float64};
      group.communicator->all_reduce(buffer, comm::ReduceOp::Sum)->wait(group.limit);
      for (std::size_t row = 0; row < norms.size(); ++row) norms[row] = {sums[2 * row], sums[2 * row + 1]};
    }
  }

  std::vector<SharedNorms> shared_;

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

}  // namespace

std::unique_ptr<Kernel> make_adagrad(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Adagrad>>(compute);
}
std::unique_ptr<Kernel> make_lamb_of_parts(const Compute& compute, const Groups& groups) {
  const auto* axes = std::get_if<std::string>(&argument_of(compute, "axes"));
  const auto* adds = std::get_if<std::vector<std::int64_t>>(&argument_of(compute, "adds"));
  SHOAL_CHECK(axes != nullptr && adds != nullptr, InvalidInput, compute.op,
              ": axes is not a text or adds no list");
  const std::size_t count = slots_of(compute, "parameters").size();
  std::vector<SharedNorms> shared;
  std::istringstream names(*axes);
  for (std::string name; names >> name;) {
    const auto begin = adds->begin() + static_cast<std::ptrdiff_t>(shared.size() * count);
    SHOAL_CHECK(adds->size() >= (shared.size() + 1) * count, InvalidInput, compute.op, ": adds has ",
                adds->size(), " items, wanted ", count, " for each of the axes '", *axes, "'");
    shared.push_back({groups.along(name), {begin, begin + static_cast<std::ptrdiff_t>(count)}});
  }
  return std::make_unique<Lamb>(compute, std::move(shared));
}
std::unique_ptr<Kernel> make_lamb(const Program&, const Compute& compute) {
  return std::make_unique<Lamb>(compute);
}
std::unique_ptr<Kernel> make_lion(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Lion>>(compute);
}
std::unique_ptr<Kernel> make_rmsprop(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Rmsprop>>(compute);
}

}  // namespace shoal::runtime
