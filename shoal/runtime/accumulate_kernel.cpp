// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/accumulate_kernel.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include "shoal/runtime/arguments.h"

namespace shoal::runtime {

namespace {

class Accumulate final : public Kernel {
 public:
  explicit Accumulate(const program::Compute& compute)
      : sums_(slots_of(compute, "sums")),
        gradients_(slots_of(compute, "gradients")),
        keep_(slot_of(compute, "keep")),
        weight_(slot_of(compute, "weight")),
        divisor_(slot_of(compute, "divisor")) {}

  void run(Slots& slots) override {
    const auto weight = slots[weight_].item<double>(), divisor = slots[divisor_].item<double>();
    const bool keeps = slots[keep_].item<double>() != 0;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      at::Tensor& sum = slots[sums_[i]];
      const at::Tensor& gradient = slots[gradients_[i]];
      if (weight != 0 && keeps)
        sum.add_(gradient, weight);
      else if (weight != 0)
        at::mul_out(sum, gradient, at::scalar_tensor(weight, gradient.options()));
      else if (!keeps)
        sum.zero_();
      if (divisor != 1) sum.div_(divisor);
    }
  }

 private:
  std::vector<std::uint32_t> sums_, gradients_;
  std::uint32_t keep_, weight_, divisor_;
};

}  // namespace

std::unique_ptr<Kernel> make_accumulate(const program::Program&, const program::Compute& compute) {
  return std::make_unique<Accumulate>(compute);
}

}  // namespace shoal::runtime
