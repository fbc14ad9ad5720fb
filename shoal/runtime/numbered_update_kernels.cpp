// SPDX-License-Identifier: Apache-2.0
// Updates that keep numbers of each tensor beside its state. NAdam: Dozat, ICLR 2016 workshop; ASGD: Polyak &
// Juditsky, SIAM J. Control Optim. 30, 1992. The formulas are those of torch.optim, whose numbers are tensors
// of the default type: they are rounded as these are.
#include <algorithm>
#include <cmath>

#include "shoal/base/error.h"
#include "shoal/runtime/elementwise_update.h"
#include "shoal/runtime/rarer_update_loops.h"
#include "shoal/runtime/update_kernels.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

namespace {

struct Nadam {
  static constexpr std::array<std::string_view, 2> kStates = {"exp_avgs", "exp_avg_sqs"};
  static constexpr std::array<std::string_view, 1> kNumbers = {"mu_products"};
  template <class Real>
  using Factors = NadamFactors<Real>;
  explicit Nadam(const Compute& compute)
      : beta1(number_of(compute, "beta1")),
        beta2(number_of(compute, "beta2")),
        eps(number_of(compute, "eps")),
        weight_decay(number_of(compute, "weight_decay")),
        momentum_decay(number_of(compute, "momentum_decay")),
        decoupled(truth_of(compute, "decoupled")) {}

  NadamFactors<double> factors(const Now& now, const std::array<at::Tensor, 1>& numbers) const {
    const at::Tensor& product = numbers[0];
    if (now.step == 1) product.fill_(1);
    const double mu = momentum(now.step), next = momentum(now.step + 1);
    product.mul_(mu);
    const double all = product.item<double>();
    return {.scale = now.scale,
            .decay_added = decoupled ? 0.0 : weight_decay,
            .decay_kept = decoupled ? 1 - now.lr * weight_decay : 1.0,
            .beta1 = beta1,
            .one_minus_beta1 = 1 - beta1,
            .beta2 = beta2,
            .one_minus_beta2 = 1 - beta2,
            .inverse_correction2 = 1 / (1 - std::pow(beta2, now.step)),
            .eps = eps,
            .gradient_length = now.lr * (1 - mu) / (1 - all),
            .average_length = now.lr * next / (1 - all * next)};
  }
  template <class Real>
  static NadamFactors<Real> as(const NadamFactors<double>& of) {
    const auto real = [](double value) { return static_cast<Real>(value); };
    return {real(of.scale),           real(of.decay_added),         real(of.decay_kept),
            real(of.beta1),           real(of.one_minus_beta1),     real(of.beta2),
            real(of.one_minus_beta2), real(of.inverse_correction2), real(of.eps),
            real(of.gradient_length), real(of.average_length)};
  }
  template <class T>
  static void apply(const Piece<T>& piece, const NadamFactors<Math<T>>& factors) {
    fast_nadam(piece.parameter, piece.gradient, piece.state[0], piece.state[1], piece.size, factors);
  }
  double momentum(double step) const { return beta1 * (1 - 0.5 * std::pow(0.96, step * momentum_decay)); }
  double beta1, beta2, eps, weight_decay, momentum_decay;
  bool decoupled;
};

struct Asgd {
  static constexpr std::array<std::string_view, 1> kStates = {"axs"};
  static constexpr std::array<std::string_view, 2> kNumbers = {"etas", "mus"};
  template <class Real>
  using Factors = AsgdFactors<Real>;
  explicit Asgd(const Compute& compute)
      : lambd(number_of(compute, "lambd")),
        alpha(number_of(compute, "alpha")),
        t0(number_of(compute, "t0")),
        weight_decay(number_of(compute, "weight_decay")) {}

  AsgdFactors<double> factors(const Now& now, const std::array<at::Tensor, 2>& numbers) const {
    const auto& [eta, mu] = numbers;
    if (now.step == 1) {
      eta.fill_(now.lr);
      mu.fill_(1);
    }
    const double length = eta.item<double>();
    const AsgdFactors<double> factors{now.scale, weight_decay, 1 - lambd * length, length, mu.item<double>()};
    eta.fill_(now.lr / std::pow(1 + lambd * now.lr * now.step, alpha));
    mu.fill_(1 / std::max(1.0, now.step - t0));
    return factors;
  }
  template <class Real>
  static AsgdFactors<Real> as(const AsgdFactors<double>& of) {
    return {static_cast<Real>(of.scale), static_cast<Real>(of.weight_decay), static_cast<Real>(of.kept),
            static_cast<Real>(of.eta), static_cast<Real>(of.mu)};
  }
  template <class T>
  static void apply(const Piece<T>& piece, const AsgdFactors<Math<T>>& factors) {
    fast_asgd(piece.parameter, piece.gradient, piece.state[0], piece.size, factors);
  }
  double lambd, alpha, t0, weight_decay;
};

template <class Rule>
class NumberedUpdate final : public Kernel {
 public:
  explicit NumberedUpdate(const Compute& compute)
      : op_(compute.op),
        rule_(compute),
        parameters_(slots_of(compute, "parameters")),
        gradients_(slots_of(compute, "gradients")),
        states_(lists_of(compute, Rule::kStates, parameters_.size())),
        coded_(compute),
        numbers_(lists_of(compute, Rule::kNumbers, parameters_.size())),
        lr_(slot_of(compute, "lr")),
        step_(slot_of(compute, "step")),
        scale_(optional_slot_of(compute, "scale")),
        sign_(is_set(compute, "maximize") ? -1 : 1) {
    check_lengths(compute, parameters_.size(), gradients_.size());
  }

  void run(Slots& slots) override {
    SHOAL_CHECK(on_cpu(slots, parameters_), Infeasible, op_,
                ": it updates tensors of main memory alone; keep the model there, or take another optimizer");
    const Now now{scalar_in(slots, lr_), sign_ * scale_in(slots, scale_), scalar_in(slots, step_)};
    Rows rows(slots, parameters_, gradients_, pointers_to(states_), &coded_);
    std::vector<decltype(rule_.factors(now, {}))> factors;  // by row
    for (std::size_t row = 0; row < parameters_.size(); ++row) {
      std::array<at::Tensor, Rule::kNumbers.size()> numbers;
      for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = slots[numbers_[i][row]];
      factors.push_back(rule_.factors(now, numbers));
    }
    for_each_piece(rows, [&]<class T>(const Row& row, const Piece<T>& piece) {
      const auto& own = factors[static_cast<std::size_t>(&row - rows.all().data())];
      Rule::apply(piece, Rule::template as<Math<T>>(own));
    });
    rows.finish();
  }

 private:
  std::string op_;
  Rule rule_;
  std::vector<std::uint32_t> parameters_, gradients_;
  std::vector<std::vector<std::uint32_t>> states_;
  Coded coded_;
  std::vector<std::vector<std::uint32_t>> numbers_;
  std::uint32_t lr_, step_, scale_;
  double sign_;
};

}  // namespace

std::unique_ptr<Kernel> make_asgd(const Program&, const Compute& compute) {
  return std::make_unique<NumberedUpdate<Asgd>>(compute);
}
std::unique_ptr<Kernel> make_nadam(const Program&, const Compute& compute) {
  return std::make_unique<NumberedUpdate<Nadam>>(compute);
}

}  // namespace shoal::runtime
