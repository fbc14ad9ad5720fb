// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/packing.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/transfer.h"

namespace shoal::rewrite {

using ir::TensorType;
using ir::ValueId;
using sharding::Collective;
using sharding::Shape;
using sharding::Shard;
using Numbers = std::vector<std::int64_t>;

static std::int64_t total(const Numbers& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Elements of the part that rank `index` has of a tensor of this shape, whose dim has `whole` without the cut.
static std::int64_t elements_of_part(Shape shape, const Shard& shard, std::int64_t whole, int index,
                                     int count) {
  shape[static_cast<std::size_t>(shard.dim)] = part_size(shard, whole, index, count);
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Whether the parts, one after the other, are the whole.
static bool is_in_order(const Shape& shape, const Shard& shard) {
  return shard.outer == 1 &&
         std::all_of(shape.begin(), shape.begin() + shard.dim, [](std::int64_t size) { return size == 1; });
}

namespace {

class Sending {
 public:
  Sending(ir::Graph& made, const Journey& journey) : made_(made), journey_(journey) {}

  std::vector<ValueId> run(const std::vector<Parcel>& parcels) {
    std::vector<std::size_t> small;
    for (std::size_t i = 0; i < parcels.size(); ++i)
      if (parcels[i].is_small) small.push_back(i);
    if (small.size() < 2) small.clear();
    std::vector<ValueId> ids(parcels.size());
    for (std::size_t i = 0; i < parcels.size(); ++i)
      if (std::ranges::find(small, i) == small.end()) ids[i] = together({parcels[i]})[0];
    if (small.empty()) return ids;
    std::vector<Parcel> group;
    for (const auto i : small) group.push_back(parcels[i]);
    const auto made = together(group);
    for (std::size_t i = 0; i < small.size(); ++i) ids[small[i]] = made[i];
    return ids;
  }

 private:
  std::vector<ValueId> together(const std::vector<Parcel>& parcels) {
    switch (journey_.kind) {
      case Collective::AllReduce: return reduced(parcels);
      case Collective::ReduceScatter: return scattered(parcels);
      case Collective::AllGather: return gathered(parcels);
      case Collective::AllToAll: return exchanged(parcels);
      case Collective::Send:
      case Collective::Receive: break;  // of stages, which pack for themselves
    }
    fail(ErrorKind::Internal, "packing: what goes from one rank to one is not packed");
  }

  std::vector<ValueId> reduced(const std::vector<Parcel>& parcels) {
    if (parcels.size() == 1)
      return {message("shoal::all_reduce", parcels[0].from, {}, parcels[0].to, parcels[0].role)};
    std::int64_t elements = 0;
    for (const Parcel& parcel : parcels) elements += ir::num_elements(parcel.to);
    const TensorType type = flat(parcels[0], elements);
    const ValueId sum = message("shoal::all_reduce", pack(parcels, 1, type), {}, type, parcels[0].role);
    return unpack(sum, parcels);
  }

  std::vector<ValueId> gathered(const std::vector<Parcel>& parcels) {
    const Parcel& first = parcels.front();
    const Numbers parts = parts_of(parcels, true);
    const bool is_alone = parcels.size() == 1, even = is_even(parcels);
    const bool in_order = is_alone && is_in_order(first.to.shape, first.shard);
    const auto copies = even ? 1 : static_cast<std::int64_t>(journey_.ranks);
    const std::int64_t mine = parts[static_cast<std::size_t>(journey_.index)];
    const ValueId self =
        is_alone && copies == 1 ? first.from : pack(parcels, copies, flat(first, mine * copies));
    if (in_order && even && first.over && ir::is_contiguous(first.to))
      return {message("shoal::all_gather_into", self, {{"wholes", ir::ValueList{first.over}}}, first.to,
                      first.role)};
    const bool is_done = in_order && !first.over;
    const TensorType type = is_done ? first.to : flat(first, total(parts));
    const ValueId all =
        even ? message("shoal::all_gather", self, {}, type, first.role)
             : exchange(self, Numbers(static_cast<std::size_t>(journey_.ranks), mine), parts, type, first);
    if (is_done) return {all};
    auto arguments = cuts(parcels);
    arguments.insert(arguments.begin(), {"self", all});
    if (first.over) {
      ir::ValueList wholes;
      for (const Parcel& parcel : parcels) wholes.emplace_back(*parcel.over);
      arguments.insert(arguments.begin(), {"wholes", wholes});
    }
    return add(first.over ? "shoal::unpack_into" : "shoal::unpack_parts", std::move(arguments), parcels);
  }

  std::vector<ValueId> scattered(const std::vector<Parcel>& parcels) {
    const Parcel& first = parcels.front();
    const Numbers parts = parts_of(parcels, true);
    const bool is_alone = parcels.size() == 1;
    const std::int64_t mine = parts[static_cast<std::size_t>(journey_.index)];
    const ValueId self = is_alone && is_in_order(first.to.shape, first.shard)
                             ? first.from
                             : pack_parts(parcels, flat(first, total(parts)));
    const TensorType type = is_alone ? first.to : flat(first, mine);
    ValueId part;
    if (is_even(parcels)) {
      part = message("shoal::reduce_scatter", self, {}, type, first.role);
    } else {
      const auto count = static_cast<std::int64_t>(journey_.ranks);
      const ValueId rows = exchange(self, parts, Numbers(static_cast<std::size_t>(count), mine),
                                    flat(first, mine * count), first);
      part = add_one("shoal::combine", {{"self", rows}, {"count", count}, {"combine", combine()}}, type,
                     first.role);
    }
    return is_alone ? std::vector{part} : unpack(part, parcels);
  }

  // A message each.
  std::vector<ValueId> exchanged(const std::vector<Parcel>& parcels) {
    std::vector<ValueId> values;
    for (const Parcel& parcel : parcels) values.push_back(exchanged(parcel));
    return values;
  }
  ValueId exchanged(const Parcel& parcel) {
    const Shape& now = made_.at(parcel.from).type.shape;
    const Numbers sends = parts_of({parcel}, false);
    Numbers receives;
    for (int rank = 0; rank < journey_.ranks; ++rank)
      receives.push_back(
          elements_of_part(parcel.to.shape, *parcel.before, parcel.whole_before, rank, journey_.ranks));
    const ValueId self =
        is_in_order(now, parcel.shard) ? parcel.from : pack_parts({parcel}, flat(parcel, total(sends)));
    if (is_in_order(parcel.to.shape, *parcel.before))
      return exchange(self, sends, receives, parcel.to, parcel);
    const ValueId all = exchange(self, sends, receives, flat(parcel, total(receives)), parcel);
    Parcel back = parcel;
    back.shard = *parcel.before;
    auto arguments = cuts({back});
    arguments.insert(arguments.begin(), {"self", all});
    return add("shoal::unpack_parts", std::move(arguments), {parcel})[0];
  }

  // Elements of each rank's parts, of all parcels together; shaped as what comes of them, or as what is sent.
  Numbers parts_of(const std::vector<Parcel>& parcels, bool as_made) const {
    Numbers counts;
    for (int rank = 0; rank < journey_.ranks; ++rank) {
      std::int64_t elements = 0;
      for (const Parcel& parcel : parcels)
        elements += elements_of_part(as_made ? parcel.to.shape : made_.at(parcel.from).type.shape,
                                     parcel.shard, parcel.whole, rank, journey_.ranks);
      counts.push_back(elements);
    }
    return counts;
  }

  static bool is_even(const std::vector<Parcel>& parcels) {
    return std::ranges::all_of(parcels, &Parcel::is_even);
  }
  static TensorType flat(const Parcel& parcel, std::int64_t elements) {
    return ir::contiguous(parcel.to.dtype, {elements});
  }
  std::string combine() const { return std::string(name_of(*journey_.combine)); }

  static ir::ValueList sources(const std::vector<Parcel>& parcels) {
    ir::ValueList list;
    for (const Parcel& parcel : parcels) list.emplace_back(parcel.from);
    return list;
  }

  std::vector<ir::Argument> cuts(const std::vector<Parcel>& parcels) const {
    Numbers dims, outers, units;
    for (const Parcel& parcel : parcels) {
      dims.push_back(parcel.shard.dim);
      outers.push_back(parcel.shard.outer);
      units.push_back(parcel.shard.unit);
    }
    std::vector<ir::Argument> arguments = {
        {"dims", dims}, {"outers", outers}, {"units", units}, {"count", std::int64_t{journey_.ranks}}};
    std::vector<Shard> shards;
    for (const Parcel& parcel : parcels) shards.push_back(parcel.shard);
    if (auto weights = weights_of(shards); !weights.empty()) arguments.push_back({"weights", weights});
    return arguments;
  }

  ValueId pack(const std::vector<Parcel>& parcels, std::int64_t copies, TensorType type) {
    return add_one("shoal::pack", {{"tensors", sources(parcels)}, {"copies", copies}}, std::move(type),
                   parcels[0].role);
  }
  ValueId pack_parts(const std::vector<Parcel>& parcels, TensorType type) {
    auto arguments = cuts(parcels);
    arguments.insert(arguments.begin(), {"tensors", sources(parcels)});
    return add_one("shoal::pack_parts", std::move(arguments), std::move(type), parcels[0].role);
  }
  std::vector<ValueId> unpack(ValueId self, const std::vector<Parcel>& parcels) {
    return add("shoal::unpack", {{"self", self}}, parcels);
  }

  ValueId message(std::string op, ValueId self, std::vector<ir::Argument> arguments, TensorType type,
                  ir::Role role) {
    arguments.push_back({"self", self});
    arguments.push_back({"axis", journey_.axis});
    if (journey_.combine) arguments.push_back({"combine", combine()});
    return add_one(std::move(op), std::move(arguments), std::move(type), role);
  }
  ValueId exchange(ValueId self, Numbers sends, Numbers receives, TensorType type, const Parcel& parcel) {
    return add_one("shoal::all_to_all",
                   {{"self", self},
                    {"axis", journey_.axis},
                    {"sends", std::move(sends)},
                    {"receives", std::move(receives)}},
                   std::move(type), parcel.role);
  }

  ValueId add_one(std::string op, std::vector<ir::Argument> arguments, TensorType type, ir::Role role) {
    const auto id = made_.add_node({.op = std::move(op),
                                    .arguments = std::move(arguments),
                                    .outputs = {},
                                    .phase = journey_.phase,
                                    .module = journey_.module,
                                    .stage = journey_.stage},
                                   {std::move(type)});
    const ValueId made = *made_.at(id).outputs[0];
    made_.values[made.index].role = role;
    return made;
  }

  // A node that makes what comes of each parcel.
  std::vector<ValueId> add(std::string op, std::vector<ir::Argument> arguments,
                           const std::vector<Parcel>& parcels) {
    std::vector<std::optional<TensorType>> types;
    for (const Parcel& parcel : parcels) types.emplace_back(parcel.to);
    const auto id = made_.add_node({.op = std::move(op),
                                    .arguments = std::move(arguments),
                                    .outputs = {},
                                    .phase = journey_.phase,
                                    .module = journey_.module,
                                    .stage = journey_.stage},
                                   types);
    std::vector<ValueId> ids;
    for (std::size_t i = 0; i < parcels.size(); ++i) {
      ids.push_back(*made_.at(id).outputs[i]);
      made_.values[ids.back().index].role = parcels[i].role;
    }
    return ids;
  }

  ir::Graph& made_;
  const Journey& journey_;
};

}  // namespace

std::vector<ValueId> send(ir::Graph& made, const Journey& journey, const std::vector<Parcel>& parcels) {
  return Sending(made, journey).run(parcels);
}

ir::Graph pack(const ir::Graph& local, const sharding::Mesh& mesh, int rank) {
  return ir::rebuild(
      local, [&](ir::Graph& made, const ir::Node& node, const ir::Mapped& in) -> std::optional<ir::Outputs> {
        if (!is_transfer(node)) return std::nullopt;
        Journey journey = journey_in(node);
        const int axis = mesh.axis(journey.axis);
        journey.index = mesh.coordinate(rank, axis);
        journey.ranks = mesh.axes[static_cast<std::size_t>(axis)].size;
        auto parcels = parcels_in(local, node);
        for (Parcel& parcel : parcels) {
          parcel.from = in(parcel.from);
          if (parcel.over) parcel.over = in(*parcel.over);
        }
        ir::Outputs outputs;
        for (const ValueId value : send(made, journey, parcels)) outputs.emplace_back(value);
        return outputs;
      });
}

}  // namespace shoal::rewrite
