// SPDX-License-Identifier: Apache-2.0
// The gradients of a step's micro-batches, summed up by their programs (compile/accumulate.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <string>

#include "shoal/train/model_tensors.h"
#include "shoal/train/offloading.h"
#include "shoal/train/runnable.h"

namespace shoal::train {

class GradientSums {
 public:
  using Tensors = std::map<std::string, at::Tensor>;  // by parameter

  const Tensors& tensors() const { return sums_; }
  bool contains(const std::string& parameter) const { return sums_.contains(parameter); }
  void set(Tensors sums) { sums_ = std::move(sums); }
  void clear() { sums_.clear(); }

  // Before a micro-batch runs. The first one writes over what is in them; a later one may have gradients that
  // those before had not.
  void bind(Runnable& microbatch, const ModelTensors& model, const Offloading& offloading, bool is_first,
            std::size_t number = 0);
  // When its gradients are there: how much they count, and what all are divided by with the last one, else 1.
  // `number`: the executor's micro-batch.
  static void weigh(Runnable& microbatch, bool is_first, double weight, double divisor,
                    std::size_t number = 0);
  // Those to which the last micro-batch adds nothing.
  void divide_others(const Runnable& last, double divisor);

 private:
  Tensors sums_;
};

// How much a micro-batch counts that has just run, of so many.
double weight_of(const Runnable& microbatch, std::size_t count, std::size_t number = 0);

}  // namespace shoal::train
