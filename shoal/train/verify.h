// SPDX-License-Identifier: Apache-2.0
// Whether two trainings are the same: losses, gradients, parameters, buffers and optimizer state of one
// device and of a mesh, say.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/train/trainer.h"

namespace shoal::train {

// What there is to compare after a step.
struct Record {
  double loss = 0;
  double grad_norm = 0;
  std::map<std::string, at::Tensor> gradients;
  TrainingState state;
};
// Called by all ranks at once.
Record record_of(const Trainer& trainer, const StepResult& result);

// A value of the step that differs by more than is allowed.
struct Difference {
  ir::Role role;
  std::string name;
  friend bool operator==(const Difference&, const Difference&) = default;
};

struct Comparison {
  double largest = 0;   // error over what is allowed: above 1 is a difference
  double error = 0;     // the same without the tolerance: |a - b| / largest |b| of the tensor or of its kind
  std::string worst;    // "gradient fc.weight"
  int num_by_kind = 0;  // tensors that pass by the scale of their kind alone
  std::vector<Difference> differences;
};

// |a - b| <= rtol * max |b| + rtol * (largest absolute value over all tensors of that kind), and a NaN is a
// difference. Tensors that one side lacks are infinitely far apart.
Comparison compare(const Record& ours, const Record& theirs, double rtol);

// What is allowed between two ways to sum in this dtype.
double tolerance_of(at::ScalarType dtype);

}  // namespace shoal::train
