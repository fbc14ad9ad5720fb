// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/local.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::rewrite {

using ir::TensorType;
using sharding::Change;
using sharding::Layout;
using sharding::Partial;
using sharding::Placement;
using sharding::Shape;
using sharding::Shard;
using sharding::Step;

TensorType local_type(const Place& place, const Layout& layout, const TensorType& whole) {
  Shape shape = sharding::local_shape(place.mesh, layout, whole.shape, place.rank);
  if (shape == whole.shape) return whole;
  std::vector<std::size_t> order(shape.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return whole.strides[a] > whole.strides[b]; });
  TensorType type = {.dtype = whole.dtype, .shape = std::move(shape), .strides = {}};
  type.strides.resize(type.shape.size());
  std::int64_t stride = 1, dense = 1;  // here, and of the whole if it had no gaps
  for (std::size_t i = order.size(); i-- > 0;) {
    if (whole.strides[order[i]] == 0 && whole.shape[order[i]] > 1) continue;  // what is expanded stays so
    if (whole.shape[order[i]] > 1 && whole.strides[order[i]] > dense) {
      stride = stride * whole.strides[order[i]] / dense;
      dense = whole.strides[order[i]];
    }
    type.strides[order[i]] = stride;
    stride *= std::max<std::int64_t>(type.shape[order[i]], 1);
    dense *= std::max<std::int64_t>(whole.shape[order[i]], 1);
  }
  return type;
}

void fit_reserve(const ir::Graph& whole, const ir::Node& node, const std::vector<sharding::Box>& in,
                 std::vector<std::optional<TensorType>>& types) {
  constexpr std::size_t kReserve = 3, kSamples = 1;
  constexpr std::int64_t kPage = 4096;
  if (node.op != "aten::mkldnn_rnn_layer" || !types.at(kReserve)) return;
  const std::int64_t all = whole.at(ir::inputs_of(node)[0]).type.shape.at(kSamples);
  std::int64_t here = 0;
  for (const auto& [begin, end] : in[0].dims.at(kSamples)) here += end - begin;
  std::int64_t& bytes = types[kReserve]->shape[0];
  if (here < all) bytes = (bytes / std::max<std::int64_t>(all, 1) * here + kPage - 1) / kPage * kPage;
}

bool same_parts(const sharding::Mesh& mesh, const Layout& a, const Layout& b, const Shape& shape) {
  if (a == b) return true;
  const auto is_partial = [](const Placement& placement) {
    return std::holds_alternative<Partial>(placement);
  };
  for (std::size_t axis = 0; axis < a.placements.size(); ++axis)
    if ((is_partial(a.placements[axis]) || is_partial(b.placements[axis])) &&
        a.placements[axis] != b.placements[axis])
      return false;
  for (int rank = 0; rank < mesh.size(); ++rank)
    if (sharding::box_of(mesh, a, shape, rank) != sharding::box_of(mesh, b, shape, rank)) return false;
  return true;
}

static double neutral_of(sharding::Combine combine) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (combine) {
    case sharding::Combine::Sum: return 0;
    case sharding::Combine::Min: return kInfinity;
    case sharding::Combine::Max: return -kInfinity;
  }
  return 0;
}

ir::Node kept_part(const Place& place, const Step& step, ir::ValueId self) {
  ir::Node node;
  if (step.change == Change::Slice) {
    const auto& shard = std::get<Shard>(step.to);
    node.op = "shoal::part";
    node.arguments = {{"self", self},
                      {"dim", std::int64_t{shard.dim}},
                      {"outer", shard.outer},
                      {"unit", shard.unit},
                      {"index", std::int64_t{place.coordinate(step.axis)}},
                      {"count", std::int64_t{place.axis(step.axis).size}}};
    if (!shard.weights.empty()) node.arguments.push_back({"weights", sharding::weights_of({shard})});
    return node;
  }
  SHOAL_CHECK(step.change == Change::KeepOnFirst, Internal, "partition: a change that sends is no part");
  if (place.coordinate(step.axis) == 0) {
    node.op = "aten::alias";
    node.arguments = {{"self", self}};
    return node;
  }
  node.op = "aten::full_like";
  node.arguments = {{"self", self},       {"fill_value", neutral_of(std::get<Partial>(step.to).combine)},
                    {"dtype", {}},        {"layout", {}},
                    {"device", {}},       {"pin_memory", {}},
                    {"memory_format", {}}};
  return node;
}

Journey journey_of(const Place& place, const Step& step) {
  const auto* partial = std::get_if<Partial>(&step.from);
  return {.kind = *collective_of(step.change),
          .axis = place.axis(step.axis).name,
          .index = place.coordinate(step.axis),
          .ranks = place.axis(step.axis).size,
          .combine = partial == nullptr ? std::nullopt : std::optional(partial->combine),
          .phase = {},
          .module = {},
          .stage = 0};
}

Parcel parcel_of(const Place& place, const Step& step, const TensorType& whole, const Layout& before,
                 const Layout& after) {
  const TensorType type = local_type(place, after, whole);
  Parcel parcel = {.from = {}, .to = ir::contiguous(type.dtype, type.shape), .shard = {}};
  Layout joined = before;  // as long as the axis does not cut it
  joined.placements[static_cast<std::size_t>(step.axis)] = sharding::Replicate{};
  const auto shape_on = [&](int rank) {
    return sharding::local_shape(place.mesh, joined, whole.shape, rank);
  };
  // The same rank for all: the first one, whose parts are the largest unless weights say otherwise.
  const std::int64_t bytes = ir::bytes_of(ir::contiguous(type.dtype, shape_on(0)));
  parcel.is_small = bytes > 0 && bytes < kSmall;
  const auto* cut = std::get_if<Shard>(step.change == Change::AllGather ? &step.from : &step.to);
  if (cut == nullptr) return parcel;
  const auto size_on = [&](int rank, int dim) { return shape_on(rank)[static_cast<std::size_t>(dim)]; };
  parcel.shard = *cut;
  parcel.whole = size_on(place.rank, cut->dim);
  const std::int64_t unit = cut->outer * cut->unit * place.axis(step.axis).size;
  parcel.is_even &= cut->weights.empty();
  for (const int rank : sharding::corners(place.mesh, joined))
    parcel.is_even &= size_on(rank, cut->dim) % unit == 0;
  if (step.change == Change::AllToAll) {
    parcel.before = std::get<Shard>(step.from);
    parcel.whole_before = size_on(place.rank, parcel.before->dim);
  }
  return parcel;
}

}  // namespace shoal::rewrite
