// SPDX-License-Identifier: Apache-2.0
// A captured graph, compiled for one use: what a call of the trainer runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/compile/compile.h"
#include "shoal/runtime/executor.h"
#include "shoal/runtime/groups.h"
#include "shoal/train/batch.h"
#include "shoal/train/model_tensors.h"
#include "shoal/train/numbers.h"

namespace shoal::train {

// The batch's tensors, in their order.
std::vector<capture::NamedTensor> inputs_of(const Batch& batch);

class Runnable {
 public:
  // `inputs`: the names of the batch's tensors, in their order. `groups`: of several ranks. `files`: of one
  // that offloads.
  // `rows`: of one that reads rows of tables.
  Runnable(compile::Compiled compiled, const std::vector<std::string>& inputs, const runtime::Groups* groups,
           runtime::FileMemory* files, const runtime::RowTables* rows = nullptr);

  runtime::Executor& executor() { return executor_; }
  const runtime::Executor& executor() const { return executor_; }
  const program::Program& program() const { return executor_.program(); }
  const compile::Whole& whole() const { return whole_; }  // without its graph: it is as large as the program
  bool has_grad_norm() const { return has_grad_norm_; }
  bool is_random() const { return is_random_; }  // reads seed and step

  // Parameters, buffers and constants stay bound.
  void bind_lasting(const ModelTensors& model, const std::vector<at::Tensor>& constants);
  // `microbatch`, here and below: the executor's; several are under way at once in a pipeline alone.
  void bind_batch(const Batch& batch, std::size_t microbatch = 0);
  void bind_draws(const at::Tensor& seed, std::int64_t step, std::size_t microbatch = 0);

  // Of a step that pushes rows: which update it is, and what multiplies their rates.
  void bind_rows(std::int64_t step, double rate, double divisor = 1);
  bool adds_up_rows() const;  // of one of several micro-batches

  void bind_loss_scale(const at::Tensor& scale, std::size_t microbatch = 0);

  double loss(std::size_t microbatch = 0) const;
  // The norm is 0 where it is not asked for.
  std::pair<double, double> loss_and_norm() const;
  // As the program leaves them: this rank's, undefined where there is none.
  std::map<std::string, at::Tensor> gradients() const;
  // Adds the outputs that are there and not yet in `outputs`: old values of what the update changes are only
  // copied in its segment. One that is a source's own memory is copied: the update, or the caller, will
  // change that.
  void add_outputs(std::map<std::string, at::Tensor>& outputs, std::size_t microbatch = 0) const;
  // What the model has written into its batch, and into what stands beside it, happens; of several ranks
  // (null: one device) this one's part of it. The check, before anything runs: nobody would see what is
  // written into the copies that other ranks' samples are put together in.
  void check_can_write(const Batch& given, const Batch& part) const;
  void write_inputs(const Batch& batch, const Distribution* ranks, std::size_t microbatch = 0) const;
  // Throws InvalidInput where micro-batches that are under way at once would write to one tensor.
  void check_writes_apart(const Batch& batch, const compile::Plan& plan) const;
  // Which arguments follow numbers, and what is in them from now on.
  void follow(std::vector<Hole> holes) { holes_ = std::move(holes); }
  void set_numbers(const Numbers& values);
  void release();  // all values, and the batch

 private:
  compile::Whole whole_;
  runtime::Executor executor_;
  std::vector<std::optional<program::Slot>> inputs_;            // of the batch's tensors
  std::vector<std::pair<std::size_t, program::Slot>> written_;  // of these, where the model has written
  std::vector<Hole> holes_;
  bool has_grad_norm_ = false;
  bool is_random_ = false;
};

}  // namespace shoal::train
