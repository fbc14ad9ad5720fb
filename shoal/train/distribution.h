// SPDX-License-Identifier: Apache-2.0
// A Trainer's share in a job of several ranks: where its tensors are, and what the ranks agree on before a
// step.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/place.h"
#include "shoal/runtime/groups.h"
#include "shoal/train/batch.h"
#include "shoal/train/parallelism.h"

namespace shoal::train {

// A batch of all ranks together, as one of them sees it.
struct SharedBatch {
  Batch part;                                              // of this rank, cut as the graph wants it
  std::map<std::string, std::vector<std::int64_t>> sizes;  // of each tensor of the whole batch
  bool asked = false;                                      // what rank 0 wished
};

class Distribution {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  // Called by all ranks at once. Parameters and buffers become those of rank 0; parameters that are kept in
  // parts leave the module, whose tensors are without memory until `materialize`. Throws InvalidInput where
  // the ranks' models differ. `needs_whole`: whose update looks at the whole tensor.
  Distribution(Parallelism parallelism, const NamedTensors& parameters, const NamedTensors& buffers,
               const std::function<bool(const std::string& parameter)>& needs_whole);

  // What the ranks were given, checked against each other. `text`: what else has to be the same. `asks`: rank
  // 0's reaches all of them.
  SharedBatch agree(const Batch& batch, const std::string& text, bool asks);
  // Every rank does it; where it throws on any of them, all of them throw what the first of these did.
  void together(const std::function<void()>& act) const;
  // This rank's part of a tensor of the whole batch.
  at::Tensor part_of_input(const std::string& input, const at::Tensor& whole) const;
  // Every tensor of the batch, of all ranks.
  Batch whole(const SharedBatch& batch);

  // Throws InvalidInput where ranks have other graphs, and names the first line that differs.
  void check_same(const ir::Graph& graph) const;

  const Parallelism& parallelism() const { return parallelism_; }
  int rank() const { return rank_; }
  const runtime::Groups& groups() const { return groups_; }
  // A parameter where it is kept in parts: this rank's. Undefined where the module has it whole.
  at::Tensor part_of_parameter(const std::string& name) const;
  // Of what lies as `layout`, from and to this rank's part. `whole_of` is called by all ranks at once.
  at::Tensor whole_of(const at::Tensor& part, const sharding::Layout& layout, at::IntArrayRef shape) const;
  at::Tensor part_of(const at::Tensor& whole, const sharding::Layout& layout) const;
  // A whole gradient that all ranks have alike, as the update wants it: this rank's part, or its summand.
  at::Tensor summand_of(const std::string& parameter, const at::Tensor& gradient) const;
  const rewrite::ParameterPins& pins_of(const std::string& parameter) const;
  // Gives the module's parameters their memory and values; `drop` takes them away again.
  void materialize();
  void drop();

 private:
  struct Kept {
    at::Tensor whole;  // the module's
    at::Tensor part;
  };

  const std::string& first_name(const std::string& parameter) const;
  at::Tensor in_shared_memory(const at::Tensor& tensor) const;
  bool is_cut(const std::string& input, std::size_t num_dims) const;
  void check_batch_dims(const Batch& batch) const;
  void check_same(const std::string& what, const std::string& text) const;
  int data_position(int rank) const;

  Parallelism parallelism_;
  runtime::Groups groups_;
  int rank_;
  std::map<std::string, rewrite::ParameterPins> pins_;
  std::map<std::string, std::string> first_name_;  // of a tied parameter's other names
  std::map<std::string, Kept> kept_;
  bool is_materialized_ = false;
};

}  // namespace shoal::train
