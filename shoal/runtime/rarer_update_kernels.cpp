// SPDX-License-Identifier: Apache-2.0
// Adadelta: Zeiler, arXiv:1212.5701; Adamax: Kingma & Ba, arXiv:1412.6980, section 7; RAdam: Liu et al.,
// arXiv:1908.03265; Rprop: Riedmiller & Braun, ICNN 1993. The formulas are those of torch.optim.
#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "shoal/runtime/elementwise_update.h"
#include "shoal/runtime/rarer_update_loops.h"
#include "shoal/runtime/update_elsewhere.h"
#include "shoal/runtime/update_kernels.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

namespace {

struct Adadelta {
  static constexpr std::array<std::string_view, 2> kStates = {"square_avgs", "acc_deltas"};
  static constexpr bool kCounts = false;
  explicit Adadelta(const Compute& compute)
      : rho(number_of(compute, "rho")),
        eps(number_of(compute, "eps")),
        weight_decay(number_of(compute, "weight_decay")) {}
  template <class T>
  void apply(const Piece<T>& piece, const Now& now) const {
    using Real = Math<T>;
    fast_adadelta(piece.parameter, piece.gradient, piece.state[0], piece.state[1], piece.size,
                  AdadeltaFactors<Real>{static_cast<Real>(now.lr), static_cast<Real>(now.scale),
                                        static_cast<Real>(rho), static_cast<Real>(1 - rho),
                                        static_cast<Real>(eps), static_cast<Real>(weight_decay)});
  }
  void apply(UpdateLists& lists, const Now& now) const {
    const auto gradients = decayed(lists, weight_decay);
    const auto &squares = lists.states[0], &deltas = lists.states[1];
    at::_foreach_mul_(squares, rho);
    at::_foreach_addcmul_(squares, gradients, gradients, 1 - rho);
    auto divisors = at::_foreach_add(squares, eps);
    at::_foreach_sqrt_(divisors);
    auto steps = at::_foreach_add(deltas, eps);
    at::_foreach_sqrt_(steps);
    at::_foreach_div_(steps, divisors);
    at::_foreach_mul_(steps, gradients);
    at::_foreach_mul_(deltas, rho);
    at::_foreach_addcmul_(deltas, steps, steps, 1 - rho);
    at::_foreach_add_(lists.parameters, steps, -now.lr);
  }
  double rho, eps, weight_decay;
};

struct Adamax {
  static constexpr std::array<std::string_view, 2> kStates = {"exp_avgs", "exp_infs"};
  static constexpr bool kCounts = true;
  explicit Adamax(const Compute& compute)
      : beta1(number_of(compute, "beta1")),
        beta2(number_of(compute, "beta2")),
        eps(number_of(compute, "eps")),
        weight_decay(number_of(compute, "weight_decay")) {}
  template <class T>
  void apply(const Piece<T>& piece, const Now& now) const {
    using Real = Math<T>;
    fast_adamax(piece.parameter, piece.gradient, piece.state[0], piece.state[1], piece.size,
                AdamaxFactors<Real>{static_cast<Real>(now.scale), static_cast<Real>(beta1),
                                    static_cast<Real>(1 - beta1), static_cast<Real>(beta2),
                                    static_cast<Real>(eps), static_cast<Real>(weight_decay),
                                    static_cast<Real>(now.lr / (1 - std::pow(beta1, now.step)))});
  }
  void apply(UpdateLists& lists, const Now& now) const {
    const auto gradients = decayed(lists, weight_decay);
    const auto &averages = lists.states[0], &largest = lists.states[1];
    at::_foreach_mul_(averages, beta1);
    at::_foreach_add_(averages, gradients, 1 - beta1);
    at::_foreach_mul_(largest, beta2);
    auto sizes = at::_foreach_abs(gradients);
    at::_foreach_add_(sizes, eps);
    at::_foreach_maximum_(largest, sizes);
    at::_foreach_addcdiv_(lists.parameters, averages, largest, -now.lr / (1 - std::pow(beta1, now.step)));
  }
  double beta1, beta2, eps, weight_decay;
};

struct Radam {
  static constexpr std::array<std::string_view, 2> kStates = {"exp_avgs", "exp_avg_sqs"};
  static constexpr bool kCounts = true;
  explicit Radam(const Compute& compute)
      : beta1(number_of(compute, "beta1")),
        beta2(number_of(compute, "beta2")),
        eps(number_of(compute, "eps")),
        weight_decay(number_of(compute, "weight_decay")),
        decoupled(truth_of(compute, "decoupled")) {}
  template <class T>
  void apply(const Piece<T>& piece, const Now& now) const {
    using Real = Math<T>;
    fast_radam(
        piece.parameter, piece.gradient, piece.state[0], piece.state[1], piece.size,
        RadamFactors<Real>{.scale = static_cast<Real>(now.scale),
                           .decay_added = static_cast<Real>(decoupled ? 0.0 : weight_decay),
                           .decay_kept = static_cast<Real>(decoupled ? 1 - now.lr * weight_decay : 1.0),
                           .beta1 = static_cast<Real>(beta1),
                           .one_minus_beta1 = static_cast<Real>(1 - beta1),
                           .beta2 = static_cast<Real>(beta2),
                           .one_minus_beta2 = static_cast<Real>(1 - beta2),
                           .eps = static_cast<Real>(eps),
                           .step_length = static_cast<Real>(now.lr / (1 - std::pow(beta1, now.step))),
                           .rectification = static_cast<Real>(rectification(now.step))});
  }
  void apply(UpdateLists& lists, const Now& now) const {
    const auto gradients = decayed(lists, decoupled ? 0.0 : weight_decay);
    if (decoupled) at::_foreach_mul_(lists.parameters, 1 - now.lr * weight_decay);
    const auto &averages = lists.states[0], &squares = lists.states[1];
    at::_foreach_mul_(averages, beta1);
    at::_foreach_add_(averages, gradients, 1 - beta1);
    at::_foreach_mul_(squares, beta2);
    at::_foreach_addcmul_(squares, gradients, gradients, 1 - beta2);
    const double length = now.lr / (1 - std::pow(beta1, now.step)), rectified = rectification(now.step);
    if (rectified == 0) return at::_foreach_add_(lists.parameters, averages, -length);
    at::_foreach_addcdiv_(lists.parameters, averages, root(squares, eps), -length * rectified);
  }
  // 0 while the average of squares is of too few gradients to divide by.
  double rectification(double step) const {
    const double correction = 1 - std::pow(beta2, step);
    const double longest = 2 / (1 - beta2) - 1;
    const double length = longest - 2 * step * std::pow(beta2, step) / correction;
    if (length <= 5) return 0;
    return std::sqrt(correction) *
           std::sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length));
  }
  double beta1, beta2, eps, weight_decay;
  bool decoupled;
};

struct Rprop {
  static constexpr std::array<std::string_view, 2> kStates = {"prevs", "step_sizes"};
  static constexpr bool kCounts = true;
  explicit Rprop(const Compute& compute)
      : shrink(number_of(compute, "shrink")),
        grow(number_of(compute, "grow")),
        smallest(number_of(compute, "smallest")),
        largest(number_of(compute, "largest")) {}
  template <class T>
  void apply(const Piece<T>& piece, const Now& now) const {
    using Real = Math<T>;
    fast_rprop(
        piece.parameter, piece.gradient, piece.state[0], piece.state[1], piece.size,
        RpropFactors<Real>{static_cast<Real>(now.scale), static_cast<Real>(shrink), static_cast<Real>(grow),
                           static_cast<Real>(smallest), static_cast<Real>(largest),
                           static_cast<Real>(now.step == 1 ? now.lr : 0.0)});
  }
  void apply(UpdateLists& lists, const Now& now) const {
    const auto &previous = lists.states[0], &lengths = lists.states[1];
    const auto agreements = at::_foreach_mul(lists.gradients, previous);
    const at::Tensor one = at::ones({}, lists.parameters[0].options());
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const at::Tensor differs = agreements[i].lt(0);
      if (now.step == 1) lengths[i].fill_(now.lr);
      lengths[i].mul_(at::where(agreements[i].gt(0), grow, at::where(differs, shrink, one)));
      previous[i].copy_(lists.gradients[i].masked_fill(differs, 0));
    }
    at::_foreach_clamp_min_(lengths, smallest);
    at::_foreach_clamp_max_(lengths, largest);
    at::_foreach_addcmul_(lists.parameters, at::_foreach_sign(previous), lengths, -1);
  }
  double shrink, grow, smallest, largest;
};

}  // namespace

std::unique_ptr<Kernel> make_adadelta(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Adadelta>>(compute);
}
std::unique_ptr<Kernel> make_adamax(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Adamax>>(compute);
}
std::unique_ptr<Kernel> make_radam(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Radam>>(compute);
}
std::unique_ptr<Kernel> make_rprop(const Program&, const Compute& compute) {
  return std::make_unique<ElementwiseUpdate<Rprop>>(compute);
}

}  // namespace shoal::runtime
