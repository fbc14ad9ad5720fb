// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/transfer.h"

#include <string>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::rewrite {

using Numbers = std::vector<std::int64_t>;

static constexpr std::string_view kTransfer = "shoal::transfer";

bool is_transfer(const ir::Node& node) { return node.op == kTransfer; }

// How an axis cuts each of several tensors.
namespace {
struct CutTensors {
  std::vector<sharding::Shard> shards;
  Numbers wholes;

  void add(const sharding::Shard& shard, std::int64_t whole) {
    shards.push_back(shard);
    wholes.push_back(whole);
  }
};
}  // namespace

template <class T>
static const T& in(const ir::Node& node, std::string_view argument) {
  const auto* found = ir::find(node, argument);
  const T* value = found == nullptr ? nullptr : std::get_if<T>(found);
  SHOAL_CHECK(value != nullptr, Internal, "transfer: a node has no ", argument);
  return *value;
}

static void add(std::vector<ir::Argument>& arguments, const std::string& prefix, const CutTensors& cuts) {
  Numbers dims, outers, units;
  for (const auto& shard : cuts.shards) {
    dims.push_back(shard.dim);
    outers.push_back(shard.outer);
    units.push_back(shard.unit);
  }
  arguments.push_back({prefix + "dims", std::move(dims)});
  arguments.push_back({prefix + "outers", std::move(outers)});
  arguments.push_back({prefix + "units", std::move(units)});
  arguments.push_back({prefix + "wholes", cuts.wholes});
  if (auto weights = sharding::weights_of(cuts.shards); !weights.empty())
    arguments.push_back({prefix + "weights", std::move(weights)});
}

static CutTensors cuts_in(const ir::Node& node, const std::string& prefix) {
  const auto &dims = in<Numbers>(node, prefix + "dims"), &outers = in<Numbers>(node, prefix + "outers"),
             &units = in<Numbers>(node, prefix + "units"), &wholes = in<Numbers>(node, prefix + "wholes");
  const bool weighs = ir::find(node, prefix + "weights") != nullptr;
  const Numbers weights = weighs ? in<Numbers>(node, prefix + "weights") : Numbers{};
  CutTensors cuts;
  for (std::size_t i = 0; i < dims.size(); ++i)
    cuts.add({.dim = static_cast<int>(dims[i]),
              .outer = outers.at(i),
              .unit = units.at(i),
              .weights = sharding::weights_at(weights, i, dims.size())},
             wholes.at(i));
  return cuts;
}

ir::Node transfer_of(const Journey& journey, const std::vector<Parcel>& parcels, const Numbers& bytes) {
  ir::ValueList tensors, over;
  CutTensors cuts, before;
  std::vector<bool> is_small, is_even;
  for (const Parcel& parcel : parcels) {
    tensors.emplace_back(parcel.from);
    if (parcel.over) over.emplace_back(*parcel.over);
    cuts.add(parcel.shard, parcel.whole);
    if (parcel.before) before.add(*parcel.before, parcel.whole_before);
    is_small.push_back(parcel.is_small);
    is_even.push_back(parcel.is_even);
  }
  ir::Node node{.op = std::string(kTransfer),
                .arguments = {{"tensors", std::move(tensors)},
                              {"over", std::move(over)},
                              {"kind", std::string(name_of(journey.kind))},
                              {"axis", journey.axis}},
                .outputs = {},
                .phase = journey.phase,
                .module = journey.module,
                .stage = journey.stage};
  if (journey.combine) node.arguments.push_back({"combine", std::string(name_of(*journey.combine))});
  add(node.arguments, "", cuts);
  add(node.arguments, "before_", before);
  node.arguments.push_back({"small", std::move(is_small)});
  node.arguments.push_back({"even", std::move(is_even)});
  node.arguments.push_back({"bytes", bytes});
  return node;
}

Journey journey_in(const ir::Node& transfer) {
  Journey journey{.kind = sharding::collective_from_text(in<std::string>(transfer, "kind")),
                  .axis = in<std::string>(transfer, "axis"),
                  .combine = {},
                  .phase = transfer.phase,
                  .module = transfer.module,
                  .stage = transfer.stage};
  if (ir::find(transfer, "combine") != nullptr)
    journey.combine = sharding::combine_from_text(in<std::string>(transfer, "combine"));
  return journey;
}

std::vector<Parcel> parcels_in(const ir::Graph& graph, const ir::Node& transfer) {
  const auto& tensors = in<ir::ValueList>(transfer, "tensors");
  const auto& over = in<ir::ValueList>(transfer, "over");
  const auto& is_small = in<std::vector<bool>>(transfer, "small");
  const auto& is_even = in<std::vector<bool>>(transfer, "even");
  const CutTensors cuts = cuts_in(transfer, ""), before = cuts_in(transfer, "before_");
  std::vector<Parcel> parcels;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& value = graph.at(*transfer.outputs[i]);
    Parcel parcel{.from = *tensors[i],
                  .to = value.type,
                  .role = value.role,
                  .shard = cuts.shards.at(i),
                  .whole = cuts.wholes[i],
                  .is_small = is_small[i],
                  .is_even = is_even[i]};
    if (!over.empty()) parcel.over = over[i];
    if (!before.shards.empty()) {
      parcel.before = before.shards.at(i);
      parcel.whole_before = before.wholes[i];
    }
    parcels.push_back(std::move(parcel));
  }
  return parcels;
}

Numbers bytes_in(const ir::Node& transfer) { return in<Numbers>(transfer, "bytes"); }

std::vector<ir::ValueId> add_joined(const ir::Graph& old, const std::vector<const ir::Node*>& transfers,
                                    const std::function<ir::ValueId(ir::ValueId)>& mapped, ir::Graph& made,
                                    std::optional<DType> as) {
  std::vector<Parcel> parcels;
  Numbers bytes;
  std::vector<std::optional<ir::TensorType>> types;
  for (const ir::Node* transfer : transfers) {
    DType was = {};
    for (Parcel& parcel : parcels_in(old, *transfer)) {
      parcel.from = mapped(parcel.from);
      if (parcel.over) parcel.over = mapped(*parcel.over);
      was = parcel.to.dtype;
      parcel.to.dtype = as.value_or(was);
      types.emplace_back(parcel.to);
      parcels.push_back(std::move(parcel));
    }
    for (const std::int64_t each : bytes_in(*transfer))
      bytes.push_back(each / shoal::bytes_of(was) * shoal::bytes_of(as.value_or(was)));
  }
  const auto id = made.add_node(transfer_of(journey_in(*transfers.front()), parcels, bytes), types);
  std::vector<ir::ValueId> values;
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    values.push_back(*made.at(id).outputs[i]);
    made.values[values.back().index].role = parcels[i].role;
  }
  return values;
}

}  // namespace shoal::rewrite
