// SPDX-License-Identifier: Apache-2.0
// A Trainer's share in a job of several ranks: where its parameters are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/compile/update.h"
#include "shoal/ir/graph.h"
#include "shoal/rewrite/place.h"
#include "shoal/rewrite/stages.h"
#include "shoal/runtime/groups.h"
#include "shoal/train/offloading.h"
#include "shoal/train/parallelism.h"
#include "shoal/train/parts.h"

namespace shoal::train {

// What this rank's part of a parameter takes where it is kept: from 64 KiB on in the communicator's memory,
// in pages.
std::int64_t bytes_of_part(std::int64_t bytes);

class Distribution {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
  using Uncut = std::function<compile::Uncut(const std::string& parameter, const sharding::Shape& shape)>;

  // Called by all ranks at once. Parameters and buffers become those of rank 0; parameters that are kept in
  // parts leave the module, whose tensors are without memory until `materialize`; so do those of a pipeline, each of
  // which one of its ranks has until it is settled. One after the other: of a module made under deferred_init one is in
  // memory at a time. Throws InvalidInput where
  // the ranks' models differ. `uncut`: what the update of a parameter wants so. Borrows `offloading`.
  Distribution(Parallelism parallelism, const NamedTensors& parameters, const NamedTensors& buffers,
               const Uncut& uncut, const Offloading& offloading);
  Distribution(const Distribution&) = delete;
  Distribution& operator=(const Distribution&) = delete;
  ~Distribution();

  const Parallelism& parallelism() const { return parallelism_; }
  bool cuts_layers() const;  // over an axis that is none of the batch, or of stages
  Rank rank() const { return {parallelism_, groups_, control_, rank_}; }
  const runtime::Groups& groups() const { return groups_; }   // of tensors
  const runtime::Group& control() const { return control_; }  // all ranks, of main memory
  // A parameter where it is kept in parts: this rank's. Undefined where the module has it whole.
  at::Tensor part_of_parameter(const std::string& name) const;
  // A whole gradient that all ranks have alike, as the update wants it: this rank's part, or its summand.
  at::Tensor summand_of(const std::string& parameter, const at::Tensor& gradient) const;
  const rewrite::ParameterPins& pins_of(const std::string& parameter) const;
  // Of a pipeline: which stage each rank has, once it is settled (null before).
  const rewrite::Stages* stages() const { return stages_ ? &*stages_ : nullptr; }
  // With the first captured step: the plan with what was found, and a pipeline's stages. What lies on other ranks
  // by them leaves this one. All ranks call it at once.
  void settle(compile::Plan plan, std::optional<rewrite::Stages> stages);
  bool is_settled() const { return is_settled_; }
  int num_stages() const { return compile::num_stages_of(parallelism_.plan, parallelism_.mesh); }
  int pipeline_ranks() const { return compile::pipeline_ranks_of(parallelism_.plan, parallelism_.mesh); }
  int pipeline_rank() const;  // this one along its axis
  // Gives the module's parameters their memory and values; `drop` takes them away again.
  void materialize();
  void drop();
  // Where another trainer of the same model has trained parameters since, they are in parts here again.
  void follow();
  // As `materialize`, and nothing is in parts again: there is no step after it.
  void end();

 private:
  struct InParts;
  struct Kept {
    at::Tensor whole;  // the module's
    at::Tensor part;
    bool takes = false;  // the memory of the whole
  };
  // Whose elements are in parts, and not by another trainer of the same model, which has trained it since.
  bool is_here(const Kept& kept) const;
  const InParts* parts_here(const at::Tensor& whole) const;
  void bring_back(Kept& kept, const std::string& name);

  void keep(const std::string& name, const at::Tensor& tensor);
  // Before a pipeline is settled: which of its ranks has the parameter meanwhile, so that none has the model. Nobody
  // alone has numbers.
  std::optional<int> keeper_of(const at::Tensor& parameter);
  void cut(Kept& kept, const std::string& name);
  void gather(Kept& kept, const std::string& name);
  const std::string& first_name(const std::string& parameter) const;
  at::Tensor in_shared_memory(const at::Tensor& tensor) const;
  at::Tensor kept_apart(const at::Tensor& part) const;
  void give_memory(const at::Tensor& whole) const;

  Parallelism parallelism_;
  runtime::Groups groups_;
  runtime::Group control_;
  int rank_;
  std::map<std::string, rewrite::ParameterPins> pins_;
  std::map<std::string, std::string> first_name_;  // of a tied parameter's other names
  std::map<std::string, Kept> kept_;
  NamedTensors parameters_;  // each once
  Uncut uncut_;
  const Offloading& offloading_;
  std::optional<rewrite::Stages> stages_;
  std::vector<std::int64_t> bytes_kept_;  // by rank of the pipeline, until it is settled
  bool is_settled_ = false;
  bool is_materialized_ = false;
};

}  // namespace shoal::train
