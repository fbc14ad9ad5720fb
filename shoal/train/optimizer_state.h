// SPDX-License-Identifier: Apache-2.0
// What the optimizers of a trainer are set to, keep of each parameter, and have counted.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shoal/checkpoint/weights.h"
#include "shoal/compile/optimizer.h"
#include "shoal/compile/update.h"
#include "shoal/runtime/executor.h"
#include "shoal/train/distribution.h"
#include "shoal/train/model_tensors.h"
#include "shoal/train/offloading.h"

namespace shoal::train {

// Throws InvalidInput with all that does not fit, and what to do where a type does not.
void check_state_fits(const std::vector<checkpoint::TensorShape>& wanted,
                      const std::vector<checkpoint::TensorShape>& found);

class OptimizerState {
 public:
  using Tensors = std::map<std::string, at::Tensor>;  // by global name, "fc.weight.exp_avg"
  using Counts = std::map<std::string, std::int64_t>;

  // Borrows the tensors, and where they go.
  OptimizerState(std::vector<OptimizerPart> parts, const ModelTensors& model, const Offloading& offloading)
      : model_(model), offloading_(offloading), parts_(std::move(parts)), rates_(parts_.size()) {}
  void set_ranks(Distribution* ranks) { ranks_ = ranks; }
  void set_master(rewrite::Master master) { master_ = master; }
  void set_seed(const at::Tensor& seed) { seed_ = seed; }  // of what updates round by chance

  // --- Settings.
  const std::vector<OptimizerPart>& parts() const { return parts_; }
  void set_parts(std::vector<OptimizerPart> parts);
  void set_rate(std::size_t part, double lr);
  double rate() const;                         // of parameters in no group, before the schedule
  std::string rates_text(double scale) const;  // all of them, for ranks to compare
  compile::UpdateSettings update(double clip_norm, bool finds_norm) const;  // borrows from this

  // --- Counts of updates, by parameter.
  const Counts& updates() const { return updates_; }
  void set_updates(Counts updates) { updates_ = std::move(updates); }
  std::int64_t updates_of(const std::string& parameter) const;
  void count(const std::vector<compile::UpdateGroup>& groups);
  // Whether the parameters that one node updates have still been updated equally often.
  bool is_current(const std::vector<compile::UpdateGroup>& groups) const;

  // --- An executor's sources: state that is not there yet is zeros.
  void bind(runtime::Executor& executor);
  void bind_rates(runtime::Executor& executor, const std::vector<compile::UpdateGroup>& groups,
                  double scale) const;

  // --- As others see it: whole tensors.
  Tensors whole() const;
  Tensors whole_of_updated() const;  // but what no step has written
  // Those that are not there become zeros; a number of dims that does not fit is not looked at.
  void write(const Tensors& whole);
  // On one device they are the very tensors from now on, where they lie as the kernels want them.
  void replace(const Tensors& whole);
  void clear() { state_.clear(); }
  // Throws InvalidInput naming what does not fit its parameter.
  void check(const Tensors& whole) const;
  std::vector<compile::Kept> kept_of(const std::string& parameter, const ir::TensorType& type) const;
  // The model's parameters have other names now, or are others: state stays with the same tensors.
  void follow(const ModelTensors::NamedTensors& before);

 private:
  const at::Tensor& parameter_of(const std::string& state) const;
  ir::TensorType type_of(const std::string& state) const;
  at::Tensor get(const std::string& state, const ir::TensorType& type);
  const sharding::Layout& layout_of(const std::string& state, DType dtype) const;
  at::Tensor whole_tensor(const std::string& state, const at::Tensor& part) const;

  const ModelTensors& model_;
  const Offloading& offloading_;
  std::vector<OptimizerPart> parts_;
  std::vector<std::optional<double>> rates_;  // by part, as they were set from outside
  Tensors state_;
  Counts updates_;
  Distribution* ranks_ = nullptr;
  rewrite::Master master_ = rewrite::Master::Float32;
  at::Tensor seed_;
};

}  // namespace shoal::train
