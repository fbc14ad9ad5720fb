// SPDX-License-Identifier: Apache-2.0
// Updates beside SGD and Adam. A rule says its lists and what it does to a piece of a row; one kernel runs
// it.
#include <ATen/Dispatch.h>

#include <array>
#include <cmath>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/update_kernels.h"
#include "shoal/runtime/update_loops.h"
#include "shoal/runtime/update_rows.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

namespace {

template <class T>
struct Piece {
  T* parameter;
  const T* gradient;
  std::array<T*, 3> state;  // null: the settings do without
  std::int64_t size;
};

struct Adagrad {
  static constexpr std::array<std::string_view, 1> kStates = {"sums"};
  explicit Adagrad(const Compute& compute)
      : eps(number_of(compute, "eps")), weight_decay(number_of(compute, "weight_decay")) {}
  template <class T>
  void apply(const Piece<T>& piece, double lr, double scale) const {
    using Real = Math<T>;
    fast_adagrad(piece.parameter, piece.gradient, piece.state[0], piece.size,
                 AdagradFactors<Real>{static_cast<Real>(lr), static_cast<Real>(scale), static_cast<Real>(eps),
                                      static_cast<Real>(weight_decay)});
  }
  double eps, weight_decay;
};

struct Rmsprop {
  static constexpr std::array<std::string_view, 3> kStates = {"square_avgs", "momentum_buffers", "grad_avgs"};
  explicit Rmsprop(const Compute& compute)
      : alpha(number_of(compute, "alpha")),
        eps(number_of(compute, "eps")),
        momentum(number_of(compute, "momentum")),
        weight_decay(number_of(compute, "weight_decay")) {}
  template <class T>
  void apply(const Piece<T>& piece, double lr, double scale) const {
    using Real = Math<T>;
    fast_rmsprop(
        piece.parameter, piece.gradient, piece.state[0], piece.state[1], piece.state[2], piece.size,
        RmspropFactors<Real>{static_cast<Real>(lr), static_cast<Real>(scale), static_cast<Real>(alpha),
                             static_cast<Real>(1 - alpha), static_cast<Real>(eps),
                             static_cast<Real>(momentum), static_cast<Real>(weight_decay)});
  }
  double alpha, eps, momentum, weight_decay;
};

struct Lion {
  static constexpr std::array<std::string_view, 1> kStates = {"exp_avgs"};
  explicit Lion(const Compute& compute)
      : beta1(number_of(compute, "beta1")),
        beta2(number_of(compute, "beta2")),
        weight_decay(number_of(compute, "weight_decay")) {}
  template <class T>
  void apply(const Piece<T>& piece, double lr, double scale) const {
    using Real = Math<T>;
    fast_lion(piece.parameter, piece.gradient, piece.state[0], piece.size,
              LionFactors<Real>{static_cast<Real>(lr), static_cast<Real>(scale),
                                static_cast<Real>(1 - lr * weight_decay), static_cast<Real>(beta1),
                                static_cast<Real>(1 - beta1), static_cast<Real>(beta2),
                                static_cast<Real>(1 - beta2)});
  }
  double beta1, beta2, weight_decay;
};

void check_on_cpu(const Slots& slots, const std::vector<std::uint32_t>& parameters, std::string_view op) {
  SHOAL_CHECK(on_cpu(slots, parameters), Infeasible, op,
              ": updates parameters in main memory only; SGD, Adam and ",
              "AdamW update those of other devices");
}

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

template <class T>
Piece<T> piece_of(const Row& row, std::int64_t begin, std::int64_t end) {
  Piece<T> piece{
      static_cast<T*>(row.parameter) + begin, static_cast<const T*>(row.gradient) + begin, {}, end - begin};
  for (std::size_t i = 0; i < piece.state.size(); ++i)
    piece.state[i] = row.state[i] == nullptr ? nullptr : static_cast<T*>(row.state[i]) + begin;
  return piece;
}

template <class Rule>
class ElementwiseUpdate final : public Kernel {
 public:
  explicit ElementwiseUpdate(const Compute& compute)
      : op_(compute.op),
        rule_(compute),
        parameters_(slots_of(compute, "parameters")),
        gradients_(slots_of(compute, "gradients")),
        states_(lists_of(compute, Rule::kStates, parameters_.size())),
        lr_(slot_of(compute, "lr")),
        scale_(optional_slot_of(compute, "scale")) {
    check_lengths(compute, parameters_.size(), gradients_.size());
  }

  void run(Slots& slots) override {
    check_on_cpu(slots, parameters_, op_);
    const double lr = scalar_in(slots, lr_);
    const double scale = scale_in(slots, scale_);
    Rows rows(slots, parameters_, gradients_, pointers_to(states_));
    rows.for_each_piece([&](const Row& row, std::int64_t begin, std::int64_t end) {
      AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, row.dtype, "update",
                                      [&] { rule_.apply(piece_of<scalar_t>(row, begin, end), lr, scale); });
    });
    rows.finish();
  }

 private:
  std::string op_;
  Rule rule_;
  std::vector<std::uint32_t> parameters_, gradients_;
  std::vector<std::vector<std::uint32_t>> states_;
  std::uint32_t lr_, scale_;
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
    check_on_cpu(slots, parameters_, "shoal::lamb");
    const double lr = scalar_in(slots, lr_);
    const double step = scalar_in(slots, step_);
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
