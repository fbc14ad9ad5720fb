// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/stage_of_rank.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/dead_code.h"
#include "shoal/rewrite/memory_order.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::Phase;
using ir::Role;
using ir::TensorType;
using ir::ValueId;

namespace {

class CuttingOut {
 public:
  CuttingOut(const Graph& graph, const Stages& stages, int rank, std::string axis, std::string device)
      : old_(graph),
        stages_(stages),
        rank_(rank),
        own_(stages.of_rank(rank)),
        nodes_(stages.rank_of_stage.size()),
        axis_(std::move(axis)),
        device_(std::move(device)),
        readers_(graph.values.size()),
        num_readers_(graph.values.size()),
        in_(graph.values.size()) {
    made_.form = graph.form;
  }

  Graph run() {
    SHOAL_CHECK(!own_.empty(), Internal, "stages: rank ", rank_, " has none");
    find_gradients();
    find_readers();
    find_nodes();
    add_sources();
    const auto count = static_cast<int>(nodes_.size());
    for (stage_ = 0; stage_ < count; ++stage_) {
      if (is_own(stage_))
        add_nodes(Phase::Forward);
      else
        receive(Phase::Forward);
    }
    for (stage_ = count - 1; stage_ >= 0; --stage_) {
      if (is_own(stage_)) {
        send_forward_down();
        add_nodes(Phase::Backward);
      } else {
        receive(Phase::Backward);
      }
    }
    stage_ = own_.front();
    add_summands();
    add_update();
    add_results();
    Counts counts;
    return remove_dead_code(std::move(made_), counts);
  }

 private:
  struct Gradient {
    std::string name;
    ValueId value;
    bool is_shared;
    bool is_here;                   // shared, or of a stage of this rank alone
    int owner;                      // the stage that adds it to its sum
    std::vector<ValueId> summands;  // of a shared parameter, by stage as they are made
  };

  int stage_of(ValueId value) const { return old_.at(*old_.at(value).producer).stage; }
  bool is_source(ValueId value) const { return !old_.at(value).producer; }
  int rank_of(int stage) const { return stages_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  bool is_own(int stage) const { return rank_of(stage) == rank_; }
  bool is_shared(const std::string& parameter) const {
    return stages_.owner_of(parameter) == Stages::kShared;
  }
  bool is_here(const std::string& parameter) const {
    return is_shared(parameter) || stages_.place_of(parameter) == rank_;
  }

  const ir::Source& source_of(ValueId value) const {
    for (const auto& source : old_.sources)
      if (source.value == value) return source;
    fail(ErrorKind::Internal, "stages: %", value.index, " is no source");
  }
  ValueId parameter(const std::string& name) const {
    for (const auto& source : old_.sources)
      if (source.name == name && old_.at(source.value).role == Role::Parameter) return source.value;
    fail(ErrorKind::Internal, "stages: there is no parameter ", name);
  }

  // --- Who reads what.

  void find_gradients() {
    for (const Node& node : old_.nodes)
      for (const ValueId input : ir::inputs_of(node)) ++num_readers_[input.index];
    for (const auto& result : old_.results) ++num_readers_[result.value.index];
    const auto add = [&](const std::string& name, ValueId value) {
      Gradient gradient{name, value, is_shared(name), is_here(name), stages_.owner_of(name), {}};
      if (gradient.is_shared) {
        gradient.owner = own_.front();
        find_summands(value, gradient.summands);
      }
      gradients_.push_back(std::move(gradient));
    };
    for (const Node& node : old_.nodes) {
      if (node.op != "shoal::accumulate") continue;
      accumulate_ = &node;
      const auto& sums = std::get<ir::ValueList>(*ir::find(node, "sums"));
      const auto& values = std::get<ir::ValueList>(*ir::find(node, "gradients"));
      for (std::size_t i = 0; i < sums.size(); ++i) add(source_of(*sums[i]).name, *values[i]);
    }
    if (accumulate_ != nullptr) return;
    for (const auto& result : old_.results)
      if (result.role == Role::Gradient) add(result.name, result.value);
  }

  // A sum of what several stages made is left to whoever adds up the ranks' summands.
  void find_summands(ValueId value, std::vector<ValueId>& found) {
    const auto& producer = old_.at(value).producer;
    if (producer) {
      const Node& node = old_.at(*producer);
      const auto inputs = ir::inputs_of(node);
      const auto is_like = [&](ValueId in) {
        return !is_source(in) && old_.at(in).type.shape == old_.at(value).type.shape &&
               old_.at(in).type.dtype == old_.at(value).type.dtype;
      };
      if (node.op == "aten::add.Tensor" && inputs.size() == 2 && num_readers_[value.index] == 1 &&
          std::ranges::all_of(inputs, is_like) &&
          *ir::find(node, "alpha") == ir::Attribute(std::int64_t{1}) &&
          std::ranges::any_of(inputs, [&](ValueId in) { return stage_of(in) != node.stage; })) {
        taken_apart_.insert(&node);
        for (const ValueId input : inputs) find_summands(input, found);
        return;
      }
    }
    found.push_back(value);
  }

  void find_readers() {
    const auto read = [&](ValueId value, int stage) {
      if (!is_source(value) && rank_of(stage_of(value)) != rank_of(stage))
        readers_[value.index].insert(stage);
    };
    for (const Node& node : old_.nodes)
      if (&node != accumulate_ && !taken_apart_.contains(&node))
        for (const ValueId input : ir::inputs_of(node)) read(input, node.stage);
    for (const Gradient& gradient : gradients_)
      if (!gradient.is_shared) read(gradient.value, gradient.owner);
    for (const auto& result : old_.results)
      if (result.role != Role::Gradient)
        for (std::size_t stage = 0; stage < nodes_.size(); ++stage)
          read(result.value, static_cast<int>(stage));
  }
  void find_nodes() {
    for (const Node& node : old_.nodes)
      if (phase_of(node) != Phase::Update && !taken_apart_.contains(&node))
        nodes_.at(static_cast<std::size_t>(node.stage))[phase_of(node)].push_back(&node);
  }
  const std::vector<const Node*>& nodes_of(Phase phase) {
    return nodes_[static_cast<std::size_t>(stage_)][phase];
  }

  // Whether a rank is sent what a stage has made in that phase.
  bool goes_to(int rank, ValueId value, Phase made, Phase sent) const {
    bool to_later = false, to_earlier = false;
    for (const int reader : readers_[value.index])
      if (rank_of(reader) == rank) (reader > stage_of(value) ? to_later : to_earlier) = true;
    if (made == Phase::Backward) return sent == Phase::Backward && to_earlier;
    return sent == Phase::Forward ? to_later : to_earlier && !to_later;
  }

  // --- Nodes.

  // Of what is another stage's: without rows.
  TensorType type_of_source(const ir::Source& source) const {
    TensorType type = old_.at(source.value).type;
    const Role role = old_.at(source.value).role;
    if (role != Role::Parameter && role != Role::Gradient) return type;
    if (is_here(source.name)) return type;
    type.shape.at(0) = 0;
    return ir::contiguous(type.dtype, type.shape);
  }
  void add_sources() {
    for (const auto& source : old_.sources)
      in_.set(source.value, made_.add_source(old_.at(source.value).role, source.name, type_of_source(source),
                                             source.fingerprint));
  }

  // Messages of gradients on their way to be summed up are of backward too.
  Phase phase_of(const Node& node) const {
    return node.phase == Phase::Update && &node != accumulate_ ? Phase::Backward : node.phase;
  }

  // Of stage_, as all that follows.
  void add_nodes(Phase phase) {
    for (const Node* node : nodes_of(phase)) {
      Node own = *node;
      own.phase = phase;
      const auto outputs = ir::copy(old_, own, in_, made_);
      for (std::size_t i = 0; i < outputs.size(); ++i)
        if (outputs[i]) in_.set(*node->outputs[i], outputs[i]);
      for (const auto& output : node->outputs)
        if (output) send(*output, phase, phase);
    }
  }

  // What both ends call at once: a stage's messages in the order of what they carry, and by rank.
  void send(ValueId value, Phase made, Phase phase) {
    std::set<int> ranks;
    for (const int reader : readers_[value.index]) ranks.insert(rank_of(reader));
    for (const int to : ranks)
      if (goes_to(to, value, made, phase)) add_send(value, to, phase);
  }
  void send_forward_down() {
    for (const Node* node : nodes_of(Phase::Forward))
      for (const auto& output : node->outputs)
        if (output) send(*output, Phase::Forward, Phase::Backward);
  }
  void receive(Phase phase) {
    for (const Phase made : {Phase::Forward, Phase::Backward})
      for (const Node* node : nodes_of(made))
        for (const auto& output : node->outputs)
          if (output && goes_to(rank_, *output, made, phase)) add_receive(*output, phase);
  }

  void add_send(ValueId value, int to, Phase phase) {
    const TensorType& type = old_.at(value).type;
    ValueId self = in_(value);
    if (const auto order = order_in_memory(type); order && !ir::is_contiguous(type))
      self = permuted(self, *order, phase);
    node("shoal::send", {{"self", self}, {"axis", axis_}, {"to", std::int64_t{to}}}, phase, {});
  }
  void add_receive(ValueId value, Phase phase) {
    const TensorType& type = old_.at(value).type;
    const auto order = order_in_memory(type);
    const bool is_permuted = order && !ir::is_contiguous(type);
    const auto shape = is_permuted ? in_order(type.shape, *order) : type.shape;
    ValueId made =
        node("shoal::receive",
             {{"axis", axis_}, {"from", std::int64_t{rank_of(stage_)}}, {"device", ir::Symbol{device_}}},
             phase, ir::contiguous(type.dtype, shape));
    if (is_permuted) made = permuted(made, inverse_of(*order), phase);
    made_.values[made.index].role = old_.at(value).role;
    in_.set(value, made);
  }
  ValueId permuted(ValueId self, const std::vector<std::int64_t>& order, Phase phase) {
    const TensorType& from = made_.at(self).type;
    const TensorType type{from.dtype, in_order(from.shape, order), in_order(from.strides, order)};
    return node("aten::permute", {{"self", self}, {"dims", order}}, phase, type);
  }
  ValueId node(std::string op, std::vector<ir::Argument> arguments, Phase phase,
               const std::optional<TensorType>& type) {
    std::vector<std::optional<TensorType>> types;
    if (type) types.emplace_back(type);
    const auto id = made_.add_node({.op = std::move(op),
                                    .arguments = std::move(arguments),
                                    .outputs = {},
                                    .phase = phase,
                                    .module = "",
                                    .stage = stage_},
                                   types);
    return type ? *made_.at(id).outputs[0] : ValueId{};
  }

  // --- Gradients.

  // What this rank adds to gradients that several ranks' stages make.
  void add_summands() {
    for (const Gradient& gradient : gradients_) {
      if (!gradient.is_shared) continue;
      std::optional<ValueId> sum;
      for (const ValueId value : gradient.summands) {
        if (!is_own(is_source(value) ? 0 : stage_of(value))) continue;
        sum = sum ? node("aten::add.Tensor",
                         {{"self", *sum}, {"other", in_(value)}, {"alpha", std::int64_t{1}}}, Phase::Backward,
                         old_.at(value).type)
                  : in_(value);
      }
      if (!sum)
        sum =
            zeros_for(gradient.name, old_.at(gradient.value).type.dtype, old_.at(gradient.value).type.shape);
      in_.set(gradient.value, sum);
    }
  }

  ValueId zeros_for(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) {
    return node("aten::new_zeros",
                {{"self", in_(parameter(name))},
                 {"size", shape},
                 {"dtype", dtype},
                 {"layout", {}},
                 {"device", {}},
                 {"pin_memory", {}}},
                Phase::Backward, ir::contiguous(dtype, shape));
  }

  void add_update() {
    if (accumulate_ == nullptr) return;
    const auto& sums = std::get<ir::ValueList>(*ir::find(*accumulate_, "sums"));
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      if (!gradients_[i].is_here) in_.set(*accumulate_->outputs[i], in_(*sums[i]));
    for (auto stage = own_.rbegin(); stage != own_.rend(); ++stage) accumulate_of(*stage, sums);
  }
  void accumulate_of(int stage, const ir::ValueList& all) {
    ir::ValueList sums, gradients;
    std::vector<std::optional<TensorType>> types;
    std::vector<ValueId> outputs;
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      if (!gradients_[i].is_here || gradients_[i].owner != stage) continue;
      outputs.push_back(*accumulate_->outputs[i]);
      sums.emplace_back(in_(*all[i]));
      gradients.emplace_back(in_(gradients_[i].value));
      types.emplace_back(old_.at(outputs.back()).type);
    }
    if (sums.empty()) return;
    Node copy = *accumulate_;
    copy.outputs.clear();
    copy.stage = stage;
    for (ir::Argument& argument : copy.arguments) {
      if (argument.name == "sums") argument.value = sums;
      if (argument.name == "gradients") argument.value = gradients;
      if (auto* value = std::get_if<ValueId>(&argument.value)) *value = in_(*value);
    }
    const auto made = made_.at(made_.add_node(std::move(copy), types)).outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      made_.values[made[i]->index].role = old_.at(outputs[i]).role;
      in_.set(outputs[i], made[i]);
    }
  }

  void add_results() {
    for (const auto& [role, name, value] : old_.results) {
      const bool is_parameter = is_source(value) && old_.at(value).role == Role::Parameter;
      SHOAL_CHECK(!is_parameter || role == Role::Gradient || is_shared(source_of(value).name), InvalidInput,
                  "pipeline: ", ir::name_of(role), " \"", name, "\" is parameter ", source_of(value).name,
                  " itself, which one stage alone has; make it a clone() of it");
      const bool is_elsewhere = role == Role::Gradient && accumulate_ == nullptr && !is_here(name);
      if (!is_elsewhere) {
        made_.add_result(role, name, in_(value));
        continue;
      }
      auto shape = old_.at(value).type.shape;  // this rank's part of it, without rows
      shape.at(0) = 0;
      const ValueId without_rows = in_(parameter(name));
      made_.add_result(role, name,
                       made_.at(without_rows).type.shape == shape
                           ? without_rows
                           : zeros_for(name, old_.at(value).type.dtype, shape));
    }
  }

  const Graph& old_;
  const Stages& stages_;
  const int rank_;                                                // along the axis
  const std::vector<int> own_;                                    // its stages
  int stage_ = 0;                                                 // that nodes are added of
  std::vector<std::map<Phase, std::vector<const Node*>>> nodes_;  // by stage
  const std::string axis_, device_;
  std::vector<std::set<int>> readers_;  // by value: the stages of other ranks
  std::vector<int> num_readers_;        // nodes and results, by value
  std::vector<Gradient> gradients_;
  const Node* accumulate_ = nullptr;
  std::set<const Node*> taken_apart_;
  Graph made_;
  ir::Mapped in_;
};

}  // namespace

Graph stage_of_rank(const Graph& local, const Stages& stages, const sharding::Mesh& mesh, int rank,
                    const std::string& axis, const std::string& device) {
  Counts counts;
  const Graph live = remove_dead_code(local, counts);  // a dead reader would be sent to, and not receive
  return CuttingOut(live, stages, mesh.coordinate(rank, mesh.axis(axis)), axis, device).run();
}

}  // namespace shoal::rewrite
