// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/collective.h"

#include <algorithm>

#include "shoal/base/error.h"
#include "shoal/base/names.h"
#include "shoal/ir/own_ops.h"

namespace shoal::sharding {

constexpr Names<Collective, 6> kCollectives = {{{Collective::AllReduce, "all_reduce"},
                                                {Collective::ReduceScatter, "reduce_scatter"},
                                                {Collective::AllGather, "all_gather"},
                                                {Collective::AllToAll, "all_to_all"},
                                                {Collective::Send, "send"},
                                                {Collective::Receive, "receive"}}};

std::string_view name_of(Collective kind) { return name_in(kCollectives, kind); }

Collective collective_from_text(std::string_view name) {
  const auto kind = parse_in(kCollectives, name);
  SHOAL_CHECK(kind, Internal, "collective: there is none called '", name, "'");
  return *kind;
}

static std::optional<Collective> kind_of(std::string_view op) {
  const ir::OwnOp* own = ir::find_own_op(op);
  if (own == nullptr || own->kind != ir::OwnOp::Kind::Message) return std::nullopt;
  return collective_from_text(own->message);
}

bool is_collective(std::string_view op) { return kind_of(op).has_value(); }

std::int64_t Message::bytes() const {
  const std::int64_t own = sends.empty() ? 0 : sends.at(static_cast<std::size_t>(index));
  const std::int64_t each = bytes_of(dtype);
  return sent(kind, in * each, own * each, ranks);
}

static std::string text_of(const std::vector<std::int64_t>& counts) {
  std::string text;
  for (const std::int64_t count : counts) text += concat(text.empty() ? "" : " ", count);
  return text;
}

std::string to_text(const Message& message) {
  std::string text = concat(name_of(message.kind), ' ', message.axis, ' ', name_of(message.dtype));
  if (message.kind == Collective::Send) return concat(text, ' ', message.in, " to ", message.peer);
  if (message.kind == Collective::Receive) return concat(text, ' ', message.out, " from ", message.peer);
  if (message.combine) text += concat(' ', name_of(*message.combine));
  text += concat(' ', message.in, " -> ", message.out);
  if (message.kind == Collective::AllToAll)
    text += concat(" (", text_of(message.sends), ", ", text_of(message.receives), ")");
  return text;
}

static std::vector<std::int64_t> counts_of(const ir::Node& node, std::string_view name) {
  const auto* attribute = ir::find(node, name);
  const auto* counts = attribute == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(attribute);
  SHOAL_CHECK(counts != nullptr, InvalidInput, node.op, ": argument ", name, " is not a list of integers");
  return *counts;
}

static std::string_view text_in(const ir::Node& node, std::string_view name) {
  const auto* attribute = ir::find(node, name);
  const auto* text = attribute == nullptr ? nullptr : std::get_if<std::string>(attribute);
  SHOAL_CHECK(text != nullptr, InvalidInput, node.op, ": argument ", name, " is not a text");
  return *text;
}

// The rank along the axis that a send or receive names.
static int peer_in(const ir::Node& node, std::string_view name, const Message& message) {
  const auto* attribute = ir::find(node, name);
  const auto* peer = attribute == nullptr ? nullptr : std::get_if<std::int64_t>(attribute);
  SHOAL_CHECK(peer != nullptr, InvalidInput, node.op, ": argument ", name, " is not a number");
  SHOAL_CHECK(*peer >= 0 && *peer < message.ranks && *peer != message.index, InvalidInput, node.op, ": ",
              name, " is ", *peer, ", on rank ", message.index, " of the ", message.ranks, " along ",
              message.axis);
  return static_cast<int>(*peer);
}

// Truths travel as bytes.
static DType travelling(DType dtype) { return dtype == DType::Bool ? DType::UInt8 : dtype; }

std::optional<Message> message_of(const ir::Node& node, const TypeOf& type_of, const Mesh& mesh, int rank) {
  const auto kind = kind_of(node.op);
  if (!kind) return std::nullopt;
  const auto* named = ir::find(node, "self");
  const auto* self = named == nullptr ? nullptr : std::get_if<ir::ValueId>(named);
  const bool goes_out = *kind != Collective::Receive, comes_in = *kind != Collective::Send;
  SHOAL_CHECK((self != nullptr) == goes_out && node.outputs.size() == (comes_in ? 1 : 0) &&
                  (!comes_in || node.outputs[0]),
              InvalidInput, node.op, ": it is from ", goes_out ? "one tensor" : "none", " to ",
              comes_in ? "one" : "none");
  const int axis = mesh.axis(text_in(node, "axis"));
  Message message = {.kind = *kind,
                     .axis = mesh.axes[static_cast<std::size_t>(axis)].name,
                     .ranks = mesh.axes[static_cast<std::size_t>(axis)].size,
                     .index = mesh.coordinate(rank, axis),
                     .dtype = travelling(type_of(goes_out ? *self : *node.outputs[0]).dtype),
                     .combine = {},
                     .in = goes_out ? ir::num_elements(type_of(*self)) : 0,
                     .out = comes_in ? ir::num_elements(type_of(*node.outputs[0])) : 0,
                     .sends = {},
                     .receives = {}};
  if (*kind == Collective::AllReduce || *kind == Collective::ReduceScatter)
    message.combine = combine_from_text(text_in(node, "combine"));
  if (!goes_out) message.peer = peer_in(node, "from", message);
  if (!comes_in) message.peer = peer_in(node, "to", message);
  bool moves = message.in > 0 || (!goes_out && message.out > 0);
  if (*kind == Collective::AllToAll) {
    message.sends = counts_of(node, "sends");
    message.receives = counts_of(node, "receives");
    moves = true;  // a rank without a part has to come to it too
  }
  if (!moves) return std::nullopt;
  return message;
}

std::vector<Range> part_ranges(const Shard& shard, std::int64_t whole, int index, int count) {
  const std::int64_t block = whole / shard.outer;
  const auto [begin, end] = units_of(shard, block / shard.unit, index, count);
  std::vector<Range> ranges;
  if (begin == end) return ranges;
  for (std::int64_t i = 0; i < shard.outer; ++i)
    ranges.push_back({i * block + begin * shard.unit, i * block + end * shard.unit});
  return ranges;
}

std::int64_t part_size(const Shard& shard, std::int64_t whole, int index, int count) {
  std::int64_t size = 0;
  for (const Range& range : part_ranges(shard, whole, index, count)) size += range.end - range.begin;
  return size;
}

std::vector<std::int64_t> weights_of(const std::vector<Shard>& shards) {
  std::size_t count = 0;
  for (const Shard& shard : shards) count = std::max(count, shard.weights.size());
  std::vector<std::int64_t> all;
  for (const Shard& shard : shards) {
    const auto weights = shard.weights.all();
    all.insert(all.end(), weights.begin(), weights.end());
    all.resize(all.size() + count - shard.weights.size());
  }
  return count == 0 ? std::vector<std::int64_t>{} : all;
}

std::vector<std::int64_t> weights_at(const std::vector<std::int64_t>& all, std::size_t index,
                                     std::size_t num_shards) {
  const auto count = static_cast<std::ptrdiff_t>(num_shards == 0 ? 0 : all.size() / num_shards);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index) * count;
  std::vector<std::int64_t> weights(begin, begin + count);
  if (std::ranges::count(weights, 0) == count) weights.clear();
  return weights;
}

}  // namespace shoal::sharding
