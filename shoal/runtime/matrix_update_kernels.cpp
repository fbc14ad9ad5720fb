// SPDX-License-Identifier: Apache-2.0
// Updates that look at whole tensors, one after the other. Adafactor: Shazeer & Stern, arXiv:1804.04235;
// Muon: Jordan et al., 2024, and Liu et al., arXiv:2502.16982. ATen's operators in torch.optim's order, so
// that what they round is the same; their sizes are read, for which a device is waited for.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/runtime/elementwise_update.h"
#include "shoal/runtime/update_kernels.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

namespace {

struct OneTensor {
  at::Tensor parameter, gradient;  // the latter with scale and sign
  std::vector<at::Tensor> states;  // undefined: it does without
};

// What both have: the tensors of an update, one after the other.
template <class Rule>
class WholeUpdate final : public Kernel {
 public:
  explicit WholeUpdate(const Compute& compute)
      : rule_(compute),
        parameters_(slots_of(compute, "parameters")),
        gradients_(slots_of(compute, "gradients")),
        states_(lists_of(compute, Rule::kStates, parameters_.size())),
        lr_(slot_of(compute, "lr")),
        step_(has_argument(compute, "step") ? slot_of(compute, "step") : kNoSlot),
        scale_(optional_slot_of(compute, "scale")),
        maximize_(is_set(compute, "maximize")) {
    check_lengths(compute, parameters_.size(), gradients_.size());
  }

  void run(Slots& slots) override {
    const Now now{scalar_in(slots, lr_), 1, step_ == kNoSlot ? 1 : scalar_in(slots, step_)};
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      OneTensor one{slots[parameters_[i]], slots[gradients_[i]], {}};
      if (scale_ != kNoSlot) one.gradient = one.gradient * slots[scale_];
      if (maximize_) one.gradient = -one.gradient;
      for (const auto& list : states_) one.states.push_back(list.empty() ? at::Tensor() : slots[list[i]]);
      rule_.apply(one, now);
    }
  }

 private:
  Rule rule_;
  std::vector<std::uint32_t> parameters_, gradients_;
  std::vector<std::vector<std::uint32_t>> states_;
  std::uint32_t lr_, step_, scale_;
  bool maximize_;
};

struct Adafactor {
  static constexpr std::array<std::string_view, 3> kStates = {"row_vars", "col_vars", "variances"};
  explicit Adafactor(const Compute& compute)
      : beta2_decay(number_of(compute, "beta2_decay")),
        eps2(number_of(compute, "eps2")),
        d(number_of(compute, "d")),
        weight_decay(number_of(compute, "weight_decay")) {
    if (has_argument(compute, "eps1")) eps1 = number_of(compute, "eps1");
  }

  void apply(const OneTensor& one, const Now& now) const {
    const auto& [parameter, gradient, states] = one;
    const double smallest = eps1 ? *eps1 : epsilon(parameter.scalar_type());
    const double fresh = std::pow(now.step, beta2_decay);
    const double root_of_size = std::sqrt(static_cast<double>(parameter.numel()));
    const double length = std::max(eps2, parameter.norm(2).item<double>() / root_of_size) *
                          std::min(now.lr, 1 / std::sqrt(now.step));
    if (weight_decay != 0) parameter.mul_(1 - now.lr * weight_decay);
    at::Tensor estimate;
    if (states[0].defined()) {
      const auto &rows = states[0], &columns = states[1];
      const auto mean = [&](std::int64_t dim) {
        return gradient.norm(2, {dim}, /*keepdim=*/true).square_().div_(gradient.size(dim));
      };
      rows.lerp_(mean(-1), fresh);
      columns.lerp_(mean(-2), fresh);
      estimate = rows.matmul(columns);
      estimate.div_(rows.mean({-2}, /*keepdim=*/true).clamp_(smallest));
    } else {
      states[2].lerp_(gradient * gradient, fresh);
      estimate = states[2].clone();
    }
    const at::Tensor update = estimate.clamp_(smallest * smallest).rsqrt_().mul_(gradient);
    const double size = std::max(1.0, update.norm(2).item<double>() / (root_of_size * d));
    parameter.add_(update, -length / size);
  }

  static double epsilon(at::ScalarType type) {
    switch (type) {
      case at::kDouble: return std::numeric_limits<double>::epsilon();
      case at::kHalf: return 0x1p-10;
      case at::kBFloat16: return 0x1p-7;
      default: return std::numeric_limits<float>::epsilon();
    }
  }

  double beta2_decay, eps2, d, weight_decay;
  std::optional<double> eps1;
};

struct Muon {
  static constexpr std::array<std::string_view, 1> kStates = {"momentum_buffers"};
  explicit Muon(const Compute& compute)
      : weight_decay(number_of(compute, "weight_decay")),
        momentum(number_of(compute, "momentum")),
        a(number_of(compute, "a")),
        b(number_of(compute, "b")),
        c(number_of(compute, "c")),
        eps(number_of(compute, "eps")),
        steps(integer_of(compute, "steps")),
        nesterov(truth_of(compute, "nesterov")),
        matches_rms(truth_of(compute, "matches_rms")) {}

  void apply(const OneTensor& one, const Now& now) const {
    const auto& [parameter, gradient, states] = one;
    const at::Tensor& buffer = states[0];
    SHOAL_CHECK(parameter.dim() == 2, InvalidInput, "shoal::muon: a parameter has shape ", parameter.sizes(),
                ", and Muon is for matrices alone; give others to another optimizer");
    buffer.lerp_(gradient, 1 - momentum);
    const at::Tensor update = orthogonal(nesterov ? gradient.lerp(buffer, momentum) : buffer);
    const auto rows = static_cast<double>(parameter.size(0)),
               columns = static_cast<double>(parameter.size(1));
    const double ratio =
        matches_rms ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
    parameter.mul_(1 - now.lr * weight_decay);
    parameter.add_(update, -now.lr * ratio);
  }

  at::Tensor orthogonal(const at::Tensor& update) const {
    const bool is_tall = update.size(0) > update.size(1);
    at::Tensor x = update.to(at::kBFloat16);
    if (x.is_same(update)) x = x.clone();
    if (is_tall) x = x.t();
    x.div_(x.norm().clamp(eps));
    for (std::int64_t step = 0; step < steps; ++step) {
      const at::Tensor gram = x.mm(x.t());
      x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
    }
    return is_tall ? x.t() : x;
  }

  double weight_decay, momentum, a, b, c, eps;
  std::int64_t steps;
  bool nesterov, matches_rms;
};

}  // namespace

std::unique_ptr<Kernel> make_adafactor(const Program&, const Compute& compute) {
  return std::make_unique<WholeUpdate<Adafactor>>(compute);
}
std::unique_ptr<Kernel> make_muon(const Program&, const Compute& compute) {
  return std::make_unique<WholeUpdate<Muon>>(compute);
}

}  // namespace shoal::runtime
