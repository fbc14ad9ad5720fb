// SPDX-License-Identifier: Apache-2.0
// What one rank has of a value that lies on a mesh, and what it does for one axis' change of it.
//
//   whole f32[8, 6]{1,8}   [S(0), R]     local f32[4, 6]{1,4}: the same order of dims, without gaps
//   R -> S(1)              on rank 1     shoal::part(self, dim=1, outer=1, unit=1, index=1, count=2)
//   R -> P(sum)            on rank 0     aten::alias(self), on others aten::full_like(self, 0)
#pragma once

#include "shoal/ir/graph.h"
#include "shoal/rewrite/packing.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"
#include "shoal/sharding/redistribute.h"

namespace shoal::rewrite {

// A rank and its mesh; borrowed.
struct Place {
  const sharding::Mesh& mesh;
  int rank = 0;

  const sharding::Axis& axis(int index) const { return mesh.axes[static_cast<std::size_t>(index)]; }
  int coordinate(int axis) const { return mesh.coordinate(rank, axis); }
};

ir::TensorType local_type(const Place& place, const sharding::Layout& layout, const ir::TensorType& whole);

// What oneDNN's LSTM keeps for its backward pass grows with the samples, and has no dim of them. `in`: what
// this rank has of the node's inputs.
void fit_reserve(const ir::Graph& whole, const ir::Node& node, const std::vector<sharding::Box>& in,
                 std::vector<std::optional<ir::TensorType>>& types);

// Whether every rank has the same of it, said in two ways or not.
bool same_parts(const sharding::Mesh& mesh, const sharding::Layout& a, const sharding::Layout& b,
                const sharding::Shape& shape);

// Of a change that sends nothing: the op and its arguments.
ir::Node kept_part(const Place& place, const sharding::Step& step, ir::ValueId self);

// Of a change that sends: how, and what of one value; phase and module, source and role are the caller's.
Journey journey_of(const Place& place, const sharding::Step& step);
Parcel parcel_of(const Place& place, const sharding::Step& step, const ir::TensorType& whole,
                 const sharding::Layout& before, const sharding::Layout& after);

}  // namespace shoal::rewrite
