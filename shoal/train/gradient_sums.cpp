// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/gradient_sums.h"

#include <ATen/ops/scalar_tensor.h>

#include <utility>

#include "shoal/compile/accumulate.h"
#include "shoal/rewrite/tables.h"

namespace shoal::train {

using ir::Role;

static void bind_weights(Runnable& microbatch, std::size_t number, double keep, double weight,
                         double divisor) {
  for (const auto& [name, value] : {std::pair{compile::kKeep, keep},
                                    {compile::kWeight, weight},
                                    {compile::kDivisor, divisor},
                                    {rewrite::kRowsKeep, keep},
                                    {rewrite::kRowsWeight, weight}})
    if (program::find_source(microbatch.program(), Role::Scalar, name) != nullptr)
      microbatch.executor().bind(Role::Scalar, name, at::scalar_tensor(value, at::kDouble), number);
}

void GradientSums::bind(Runnable& microbatch, const ModelTensors& model, const Offloading& offloading,
                        bool is_first, std::size_t number) {
  const auto& program = microbatch.program();
  for (const auto& source : program.sources) {
    if (source.role != Role::Gradient) continue;
    auto& sum = sums_[source.name];
    if (!sum.defined()) {
      sum = offloading.empty(Role::Gradient, program.types.at(source.slot.index),
                             model.find_parameter(source.name)->options());
      if (!is_first) sum.zero_();
    }
    microbatch.executor().bind(source.slot, sum);
  }
  bind_weights(microbatch, number, 0, 0, 1);
}

void GradientSums::weigh(Runnable& microbatch, bool is_first, double weight, double divisor,
                         std::size_t number) {
  bind_weights(microbatch, number, is_first ? 0 : 1, weight, divisor);
}

void GradientSums::divide_others(const Runnable& last, double divisor) {
  if (divisor == 1) return;
  const at::NoGradGuard no_grad;
  for (auto& [name, sum] : sums_)
    if (program::find_source(last.program(), Role::Gradient, name) == nullptr) sum.div_(divisor);
}

double weight_of(const Runnable& microbatch, std::size_t count, std::size_t number) {
  using Kind = compile::Normaliser::Kind;
  const compile::Normaliser& normaliser = microbatch.whole().normaliser;
  switch (normaliser.kind) {
    case Kind::Value:
      return microbatch.executor().result(Role::Output, compile::kCount, number).item<double>();
    case Kind::Elements: return normaliser.elements;
    case Kind::Sum: return 1;
    case Kind::Equal: break;
  }
  return 1 / static_cast<double>(count);
}

}  // namespace shoal::train
