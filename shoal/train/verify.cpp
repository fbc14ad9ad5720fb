// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/verify.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shoal/base/error.h"

namespace shoal::train {

using Tensors = std::map<std::string, at::Tensor>;

static Tensors copies(const Tensors& tensors) {
  Tensors copied;
  for (const auto& [name, tensor] : tensors) copied.emplace(name, tensor.detach().clone());
  return copied;
}

Record record_of(const Trainer& trainer, const StepResult& result) {
  Record record{.loss = result.loss,
                .grad_norm = result.grad_norm,
                .gradients = copies(trainer.gradients()),
                .state = trainer.state()};
  record.state.model = copies(record.state.model);
  record.state.optimizer = copies(record.state.optimizer);
  return record;
}

static double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).abs().max().item<double>();
}

namespace {

class Comparing {
 public:
  explicit Comparing(double rtol) : rtol_(rtol) {}

  void add(const char* kind, ir::Role role, const Tensors& ours, const Tensors& theirs) {
    double of_kind = 0;
    for (const auto& [name, tensor] : theirs) of_kind = std::max(of_kind, largest(tensor));
    for (const auto& [name, tensor] : ours)
      if (!theirs.contains(name)) note(kind, role, name, std::numeric_limits<double>::infinity(), 0, 1);
    for (const auto& [name, tensor] : theirs) {
      const auto found = ours.find(name);
      if (found == ours.end() || found->second.sizes() != tensor.sizes()) {
        note(kind, role, name, std::numeric_limits<double>::infinity(), 0, 1);
        continue;
      }
      const double error = largest(found->second.to(at::kDouble) - tensor.to(at::kDouble));
      const double own = largest(tensor);
      result_.num_by_kind += error > rtol_ * own;
      note(kind, role, name, error, own, of_kind);
    }
  }
  void add(const char* kind, ir::Role role, double ours, double theirs) {
    note(kind, role, kind, std::abs(ours - theirs), std::abs(theirs), std::abs(theirs));
  }

  Comparison result() && { return std::move(result_); }

 private:
  void note(const char* kind, ir::Role role, const std::string& name, double error, double own,
            double of_kind) {
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (error == 0) return;
    const double share = error / (rtol_ * (own + of_kind));
    if (share > 1) result_.differences.push_back({role, name});
    if (share <= result_.largest) return;
    result_.largest = share;
    result_.error = share * rtol_;
    result_.worst = name == kind ? name : concat(kind, ' ', name);
  }

  double rtol_;
  Comparison result_;
};

}  // namespace

Comparison compare(const Record& ours, const Record& theirs, double rtol) {
  Comparing comparing(rtol);
  comparing.add("loss", ir::Role::Loss, ours.loss, theirs.loss);
  comparing.add("grad_norm", ir::Role::Output, ours.grad_norm, theirs.grad_norm);
  comparing.add("gradient", ir::Role::Gradient, ours.gradients, theirs.gradients);
  comparing.add("parameter or buffer", ir::Role::Parameter, ours.state.model, theirs.state.model);
  comparing.add("optimizer state", ir::Role::OptimizerState, ours.state.optimizer, theirs.state.optimizer);
  return std::move(comparing).result();
}

double tolerance_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return 1e-9;
    case at::kFloat: return 1e-3;
    default: return 5e-2;
  }
}

}  // namespace shoal::train
