// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/stage_of_rank.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/dead_code.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::Phase;
using ir::Role;
using ir::TensorType;
using ir::ValueId;

// Dims in the order in which a value's elements lie, where they lie without gaps in another order than the
// dims'. It is then sent as its memory is, and looked at by its dims again where it comes to.
static std::optional<std::vector<std::int64_t>> order_in_memory(const TensorType& type) {
  std::vector<std::int64_t> order(type.shape.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  const auto at = [](const auto& list, std::int64_t dim) { return list[static_cast<std::size_t>(dim)]; };
  std::ranges::stable_sort(order, [&](auto a, auto b) { return at(type.strides, a) > at(type.strides, b); });
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    if (at(type.strides, order[i]) != stride) return std::nullopt;
    stride *= at(type.shape, order[i]);
  }
  return order;
}

namespace {

class CuttingOut {
 public:
  CuttingOut(const Graph& graph, const Stages& stages, int stage, std::string axis, std::string device)
      : old_(graph),
        stages_(stages),
        own_(stage),
        axis_(std::move(axis)),
        device_(std::move(device)),
        readers_(graph.values.size()),
        num_readers_(graph.values.size()),
        in_(graph.values.size()) {
    made_.form = graph.form;
  }

  Graph run() {
    find_gradients();
    find_readers();
    add_sources();
    receive(Phase::Forward, [&](int from) { return from < own_; });
    add_nodes(Phase::Forward);
    send_forward_down();
    receive(Phase::Backward, [&](int from) { return from > own_; });
    add_nodes(Phase::Backward);
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
    int owner;
    std::vector<ValueId> summands;  // of a shared parameter, by stage as they are made
  };

  int stage_of(ValueId value) const { return old_.at(*old_.at(value).producer).stage; }
  bool is_source(ValueId value) const { return !old_.at(value).producer; }
  int owner_of(const std::string& parameter) const { return stages_.owner_of(parameter); }

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
      Gradient gradient{name, value, owner_of(name), {}};
      if (gradient.owner == Stages::kShared) find_summands(value, gradient.summands);
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
      if (!is_source(value) && stage_of(value) != stage) readers_[value.index].insert(stage);
    };
    for (const Node& node : old_.nodes)
      if (&node != accumulate_ && !taken_apart_.contains(&node))
        for (const ValueId input : ir::inputs_of(node)) read(input, node.stage);
    for (const Gradient& gradient : gradients_)
      if (gradient.owner != Stages::kShared) read(gradient.value, gradient.owner);
    const auto count = static_cast<int>(stages_.begins.size()) + 1;
    for (const auto& result : old_.results)
      if (result.role != Role::Gradient)
        for (int stage = 0; stage < count; ++stage) read(result.value, stage);
  }

  // --- Nodes.

  // Of what is another stage's: without rows.
  TensorType type_of_source(const ir::Source& source) const {
    TensorType type = old_.at(source.value).type;
    const Role role = old_.at(source.value).role;
    if (role != Role::Parameter && role != Role::Gradient) return type;
    const int owner = owner_of(source.name);
    if (owner == own_ || owner == Stages::kShared) return type;
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
  bool is_own(const Node& node) const { return node.stage == own_ && !taken_apart_.contains(&node); }

  void add_nodes(Phase phase) {
    for (const Node& node : old_.nodes) {
      if (phase_of(node) != phase || !is_own(node)) continue;
      Node own = node;
      own.phase = phase;
      const auto outputs = ir::copy(old_, own, in_, made_);
      for (std::size_t i = 0; i < outputs.size(); ++i)
        if (outputs[i]) in_.set(*node.outputs[i], outputs[i]);
      for (const auto& output : node.outputs)
        if (output) send(*output, phase);
    }
  }

  // What both ends call at once: forward's to those after, backward's to those before.
  void send(ValueId value, Phase phase) {
    for (const int to : readers_[value.index])
      if ((to > own_) == (phase == Phase::Forward)) add_send(value, to, phase);
  }
  void send_forward_down() {
    for (const Node& node : old_.nodes) {
      if (node.phase != Phase::Forward || !is_own(node)) continue;
      for (const auto& output : node.outputs)
        if (output)
          for (const int to : readers_[output->index])
            if (to < own_) add_send(*output, to, Phase::Backward);
    }
  }
  template <class From>
  void receive(Phase phase, const From& comes_from) {
    for (const Phase made : {Phase::Forward, Phase::Backward})
      for (const Node& node : old_.nodes) {
        if (phase_of(node) != made || node.stage == own_ || taken_apart_.contains(&node)) continue;
        for (const auto& output : node.outputs) {
          if (!output || !readers_[output->index].contains(own_) || !comes_from(node.stage)) continue;
          SHOAL_CHECK(made <= phase, Internal, "stages: %", output->index, " comes after it is read");
          add_receive(*output, node.stage, phase);
        }
      }
  }

  void add_send(ValueId value, int to, Phase phase) {
    const TensorType& type = old_.at(value).type;
    ValueId self = in_(value);
    if (const auto order = order_in_memory(type); order && !ir::is_contiguous(type))
      self = permuted(self, *order, phase);
    node("shoal::send", {{"self", self}, {"axis", axis_}, {"to", std::int64_t{to}}}, phase, {});
  }
  void add_receive(ValueId value, int from, Phase phase) {
    const TensorType& type = old_.at(value).type;
    const auto order = order_in_memory(type);
    const bool is_permuted = order && !ir::is_contiguous(type);
    std::vector<std::int64_t> shape = type.shape;
    if (is_permuted)
      for (std::size_t i = 0; i < shape.size(); ++i)
        shape[i] = type.shape[static_cast<std::size_t>((*order)[i])];
    ValueId made = node("shoal::receive",
                        {{"axis", axis_}, {"from", std::int64_t{from}}, {"device", ir::Symbol{device_}}},
                        phase, ir::contiguous(type.dtype, shape));
    if (is_permuted) {
      std::vector<std::int64_t> back(order->size());
      for (std::size_t i = 0; i < back.size(); ++i)
        back[static_cast<std::size_t>((*order)[i])] = static_cast<std::int64_t>(i);
      made = permuted(made, back, phase);
    }
    made_.values[made.index].role = old_.at(value).role;
    in_.set(value, made);
  }
  ValueId permuted(ValueId self, const std::vector<std::int64_t>& order, Phase phase) {
    const TensorType& from = made_.at(self).type;
    TensorType type{from.dtype, {}, {}};
    for (const std::int64_t dim : order) {
      type.shape.push_back(from.shape[static_cast<std::size_t>(dim)]);
      type.strides.push_back(from.strides[static_cast<std::size_t>(dim)]);
    }
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
                                    .stage = own_},
                                   types);
    return type ? *made_.at(id).outputs[0] : ValueId{};
  }

  // --- Gradients.

  // What this stage adds to gradients that several stages make.
  void add_summands() {
    for (const Gradient& gradient : gradients_) {
      if (gradient.owner != Stages::kShared) continue;
      std::optional<ValueId> sum;
      for (const ValueId value : gradient.summands) {
        if ((is_source(value) ? 0 : stage_of(value)) != own_) continue;
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
    for (const Node& node : old_.nodes) {
      if (&node != accumulate_) continue;
      ir::ValueList sums, gradients;
      std::vector<std::optional<TensorType>> types;
      std::vector<ValueId> outputs;
      const auto& all = std::get<ir::ValueList>(*ir::find(node, "sums"));
      for (std::size_t i = 0; i < gradients_.size(); ++i) {
        const ValueId output = *node.outputs[i], sum = *all[i];
        if (gradients_[i].owner != own_ && gradients_[i].owner != Stages::kShared) {
          in_.set(output, in_(sum));
          continue;
        }
        sums.emplace_back(in_(sum));
        gradients.emplace_back(in_(gradients_[i].value));
        types.emplace_back(old_.at(output).type);
        outputs.push_back(output);
      }
      if (sums.empty()) return;
      Node copy = node;
      copy.outputs.clear();
      copy.stage = own_;
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
  }

  void add_results() {
    for (const auto& [role, name, value] : old_.results) {
      const bool is_parameter = is_source(value) && old_.at(value).role == Role::Parameter;
      SHOAL_CHECK(
          !is_parameter || role == Role::Gradient || owner_of(source_of(value).name) == Stages::kShared,
          InvalidInput, "pipeline: ", ir::name_of(role), " \"", name, "\" is parameter ",
          source_of(value).name, " itself, which one stage alone has; make it a clone() of it");
      const bool is_elsewhere = role == Role::Gradient && accumulate_ == nullptr && owner_of(name) != own_ &&
                                owner_of(name) != Stages::kShared;
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
  const int own_;
  const std::string axis_, device_;
  std::vector<std::set<int>> readers_;  // by value: the stages besides its own
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
