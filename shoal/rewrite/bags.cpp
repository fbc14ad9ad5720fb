// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/bags.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "shoal/ir/fingerprint.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::Outputs;
using ir::ValueId;
using Sizes = std::vector<std::int64_t>;

static constexpr std::string_view kForward = "aten::_embedding_bag",
                                  kFrozen = "aten::_embedding_bag_forward_only",
                                  kBackward = "aten::_embedding_bag_backward",
                                  kOfWeights = "aten::_embedding_bag_per_sample_weights_backward";
static constexpr std::int64_t kSumMode = 0, kMeanMode = 1;  // at::native's modes

template <class T>
static const T* argument_in(const Node& node, std::string_view name) {
  const auto* found = ir::find(node, name);
  return found == nullptr ? nullptr : std::get_if<T>(found);
}

static bool has_padding(const Node& node) {
  const auto* index = argument_in<std::int64_t>(node, "padding_idx");
  return index != nullptr && *index >= 0;
}

template <class T>
static bool are_every(std::int64_t bags, std::int64_t length, const std::string& fingerprint) {
  std::vector<T> offsets;
  for (std::int64_t bag = 0; bag < bags; ++bag) offsets.push_back(static_cast<T>(bag * length));
  return ir::fingerprint_of(std::as_bytes(std::span(offsets))) == fingerprint;
}

namespace {

// Ids with one of padding after them, by ids and padding: what backward looks up is what forward did.
using PaddedIds = std::map<std::pair<ValueId, std::int64_t>, ValueId>;

class Bags {
 public:
  Bags(const Graph& graph, const std::vector<std::string>& parameters) : graph_(graph), names_(parameters) {}

  std::optional<Outputs> write(Graph& made, const Node& node, const ir::Mapped& in);

 private:
  // How many ids each has, where that is the same.
  std::optional<std::int64_t> length_of(const Node& node) const {
    const auto* offsets = argument_in<ValueId>(node, "offsets");
    const auto* indices = argument_in<ValueId>(node, "indices");
    const auto* mode = argument_in<std::int64_t>(node, "mode");
    if (offsets == nullptr || indices == nullptr || mode == nullptr ||
        (*mode != kSumMode && *mode != kMeanMode))
      return {};
    const auto source =
        std::ranges::find(graph_.sources, *offsets, [](const auto& each) { return each.value; });
    if (source == graph_.sources.end()) return {};
    const auto& type = graph_.at(*offsets).type;
    const std::int64_t bags = type.shape.at(0), ids = graph_.at(*indices).type.shape.at(0);
    if (bags == 0 || ids % bags != 0 || ids == 0) return {};
    const bool are_regular =
        type.dtype == DType::Int64   ? are_every<std::int64_t>(bags, ids / bags, source->fingerprint)
        : type.dtype == DType::Int32 ? are_every<std::int32_t>(bags, ids / bags, source->fingerprint)
                                     : false;
    return are_regular ? std::optional(ids / bags) : std::nullopt;
  }
  bool is_of_these(ValueId weight) const {
    return std::ranges::any_of(graph_.sources, [&](const auto& source) {
      return source.value == weight && graph_.at(weight).role == ir::Role::Parameter &&
             std::ranges::find(names_, source.name) != names_.end();
    });
  }

  const Graph& graph_;
  const std::vector<std::string>& names_;
  std::vector<ValueId> bag_sizes_;  // outputs of bags that are written out, by which backward knows them
  PaddedIds padded_;
};

// A bag over the rows that it reads, one for each of its ids: of any length, and of any mode. Where an id is that of
// padding, there is one row more, of that id, and the bag skips it:
//
//   ids [7, 2, 7, 5], padding 7   ─►   rows of [7, 2, 7, 5, 7], indices [4, 1, 4, 3], padding 4
class OverRows {
 public:
  OverRows(const Graph& old, Graph& made, const Node& node, const ir::Mapped& in, PaddedIds& padded)
      : old_(old), node_(node), ids_(in(*argument_in<ValueId>(node, "indices"))), write_(made, node) {
    ValueId places = write_.arange(write_.type(ids_).shape.at(0), write_.type(ids_).dtype);
    if (has_padding(node)) {
      padding_ = *argument_in<std::int64_t>(node, "padding_idx");
      places = skipping(places);
      const auto [found, is_new] = padded.try_emplace({ids_, padding_}, ids_);
      if (is_new) found->second = with_padding();
      ids_ = found->second;
    }
    count_ = write_.type(ids_).shape.at(0);
    mapped_ = ir::with_inputs(node, [&](ValueId value) { return in(value); });
    for (auto& argument : mapped_.arguments) {
      if (argument.name == "indices") argument.value = places;
      if (argument.name == "weight")
        argument.value = write_.embedding(std::get<ValueId>(argument.value), ids_, padding_);
      if (argument.name == "num_weights") argument.value = count_;
      if (argument.name == "padding_idx" && padding_ >= 0) argument.value = count_ - 1;
    }
  }

  Outputs forward() {
    std::vector<std::optional<ir::TensorType>> types;
    for (const auto& output : node_.outputs)
      types.push_back(output ? std::optional(old_.at(*output).type) : std::nullopt);
    return written(types);
  }
  Outputs backward() {
    const ir::TensorType& whole = old_.at(*node_.outputs.at(0)).type;
    const ValueId rows = *written({ir::contiguous(whole.dtype, {count_, whole.shape.at(1)})}).at(0);
    return {write_.embedding_backward(rows, ids_, whole, padding_)};
  }

 private:
  // The last row, where there is padding.
  ValueId skipping(ValueId places) {
    const std::int64_t count = write_.type(ids_).shape.at(0);
    const ValueId is = write_.value("aten::eq.Scalar", {{"self", ids_}, {"other", padding_}},
                                    ir::contiguous(DType::Bool, {count}));
    return write_.value("aten::masked_fill.Scalar", {{"self", places}, {"mask", is}, {"value", count}},
                        write_.type(places));
  }
  ValueId with_padding() {
    const auto [dtype, shape, strides] = write_.type(ids_);
    const ValueId more = write_.full({1}, padding_, dtype);
    return write_.value("aten::cat", {{"tensors", ir::ValueList{ids_, more}}, {"dim", std::int64_t{0}}},
                        ir::contiguous(dtype, {shape.at(0) + 1}));
  }
  Outputs written(const std::vector<std::optional<ir::TensorType>>& types) {
    return write_.graph().at(write_.node(mapped_.op, mapped_.arguments, types)).outputs;
  }

  const Graph& old_;
  const Node& node_;
  ValueId ids_;
  Writer write_;
  std::int64_t count_ = 0, padding_ = -1;
  Node mapped_;
};

// A bag that is being written out, forward or backward.
class Writing {
 public:
  Writing(const Graph& old, Graph& made, const Node& node, const ir::Mapped& in, std::int64_t length)
      : old_(old), made_(made), node_(node), in_(in), write_(made, node), length_(length) {
    const ValueId indices = *argument_in<ValueId>(node, "indices");
    bags_ = old.at(indices).type.shape.at(0) / length;
    ids_ = two_dims(indices);
    const auto* padding = argument_in<std::int64_t>(node, "padding_idx");
    padding_ = padding == nullptr ? -1 : *padding;
    is_mean_ = *argument_in<std::int64_t>(node, "mode") == kMeanMode;
  }

  ValueId forward(ValueId weight) {
    ValueId rows = looked_up(weight);
    if (const auto weights = weights_of_samples(rows)) rows = write_.mul(rows, *weights);
    if (padding_ >= 0) rows = write_.mul(rows, counted(rows));
    return divided(write_.sum(rows, {1}, false));
  }
  ValueId backward() {
    ValueId gradient = spread(divided(in_(*argument_in<ValueId>(node_, "grad"))));
    if (const auto weights = weights_of_samples(gradient)) gradient = write_.mul(gradient, *weights);
    return write_.embedding_backward(gradient, ids_, old_.at(*node_.outputs.at(0)).type, padding_);
  }
  // What the weights of samples get.
  ValueId of_weights(ValueId weight) {
    const ValueId gradient = spread(in_(*argument_in<ValueId>(node_, "grad")));
    ValueId products = write_.mul(looked_up(weight), gradient);
    if (padding_ >= 0) products = write_.mul(products, counted(products));
    return write_.view(write_.sum(products, {2}, false), {bags_ * length_});
  }

 private:
  // Of ids in a row: as they were before a view laid them so, or by one.
  ValueId two_dims(ValueId in_a_row) {
    const Sizes shape = {bags_, length_};
    if (const auto& producer = old_.at(in_a_row).producer) {
      const Node& node = old_.at(*producer);
      const auto* self = argument_in<ValueId>(node, "self");
      if (node.op == "aten::view" && self != nullptr && old_.at(*self).type.shape == shape) return in_(*self);
    }
    return write_.view(in_(in_a_row), shape);
  }
  ValueId looked_up(ValueId weight) { return write_.embedding(in_(weight), ids_, padding_); }
  std::optional<ValueId> weights_of_samples(ValueId like) {
    const auto* weights = argument_in<ValueId>(node_, "per_sample_weights");
    if (weights == nullptr) return std::nullopt;
    return write_.converted(write_.view(in_(*weights), {bags_, length_, 1}), write_.type(like).dtype);
  }
  // 1 for an id, 0 for padding: [bags, length, 1].
  ValueId counted(ValueId like) {
    const ValueId is = write_.value("aten::ne.Scalar", {{"self", ids_}, {"other", padding_}},
                                    ir::contiguous(DType::Bool, {bags_, length_}));
    return write_.view(write_.converted(is, write_.type(like).dtype), {bags_, length_, 1});
  }
  // By how many ids a bag has, of a mean; one without any has zeros.
  ValueId divided(ValueId sums) {
    if (!is_mean_) return sums;
    if (padding_ < 0) return write_.over(sums, static_cast<double>(length_));
    const ValueId count = write_.sum(counted(sums), {1}, false);
    const ValueId least =
        write_.value("aten::clamp_min", {{"self", count}, {"min", std::int64_t{1}}}, write_.type(count));
    return write_.div(sums, least);
  }
  ValueId spread(ValueId of_bags) {
    const ir::TensorType type = write_.type(of_bags);
    const std::int64_t width = type.shape.at(1), outer = type.strides.at(0), inner = type.strides.at(1);
    const ValueId column = write_.value("aten::unsqueeze", {{"self", of_bags}, {"dim", std::int64_t{1}}},
                                        {type.dtype, {bags_, 1, width}, {outer, width * inner, inner}});
    const Sizes shape = {bags_, length_, width};
    return write_.value("aten::expand", {{"self", column}, {"size", shape}, {"implicit", false}},
                        {type.dtype, shape, {outer, 0, inner}});
  }

  const Graph& old_;
  Graph& made_;
  const Node& node_;
  const ir::Mapped& in_;
  Writer write_;
  const std::int64_t length_;
  std::int64_t bags_ = 0, padding_ = -1;
  bool is_mean_ = false;
  ValueId ids_;
};

}  // namespace

std::optional<Outputs> Bags::write(Graph& made, const Node& node, const ir::Mapped& in) {
  const auto* weight = argument_in<ValueId>(node, "weight");
  const bool reads = (node.op == kForward || node.op == kFrozen || node.op == kOfWeights) &&
                     weight != nullptr && is_of_these(*weight);
  const auto* sizes = argument_in<ValueId>(node, "bag_size");
  const bool is_backward =
      node.op == kBackward && sizes != nullptr && std::ranges::find(bag_sizes_, *sizes) != bag_sizes_.end();
  if (!reads && !is_backward) return std::nullopt;
  const auto length = length_of(node);
  const auto* scales = argument_in<bool>(node, "scale_grad_by_freq");
  if (scales != nullptr && *scales) return std::nullopt;
  if (node.op == kForward) bag_sizes_.push_back(*node.outputs.at(2));
  if (!length) {
    OverRows over(graph_, made, node, in, padded_);
    return is_backward ? over.backward() : over.forward();
  }
  Writing writing(graph_, made, node, in, *length);
  if (is_backward) return Outputs{writing.backward()};
  if (node.op == kOfWeights) return Outputs{writing.of_weights(*weight)};
  Outputs outputs(node.outputs.size());
  outputs[0] = writing.forward(*weight);
  return outputs;
}

Graph bags_as_lookups(Graph graph, const std::vector<std::string>& parameters) {
  const bool has_bags = std::ranges::any_of(
      graph.nodes, [](const Node& node) { return node.op == kForward || node.op == kFrozen; });
  if (!has_bags) return graph;
  Bags bags(graph, parameters);
  return ir::rebuild(
      graph, [&](Graph& made, const Node& node, const ir::Mapped& in) { return bags.write(made, node, in); });
}

}  // namespace shoal::rewrite
