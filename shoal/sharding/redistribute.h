// SPDX-License-Identifier: Apache-2.0
// From one layout to another on one mesh: which collectives, along which axes, and how many bytes.
//
//   [P(sum), R]    -> [S(0), R]       reduce_scatter along the first axis
//   [S(0), S(0)]   -> [R, S(0)]       all_gather along the first axis: the second one's parts, whole
//   [S(0), S(0)]   -> [S(0), R]       all_gather along the first, along the second, then each keeps its part:
//                                     what the second axis cut first can only be joined last
//
// The same answer serves activations, gradients, stored parameters and checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/sharding/collective.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::sharding {

enum class Change {
  AllReduce,      // Partial -> Replicate
  ReduceScatter,  // Partial -> Shard
  AllGather,      // Shard -> Replicate
  AllToAll,       // Shard -> Shard of another dim
  Slice,          // Replicate -> Shard      nothing is sent
  KeepOnFirst,    // Replicate -> Partial    nothing is sent: the first rank keeps it, others are neutral
};
// What is sent for it; nothing for the last two.
std::optional<Collective> collective_of(Change change);

// Of one axis; nothing where there is none: a Partial comes from Replicate alone.
std::optional<Change> change_of(const Placement& from, const Placement& to);

// An axis can cut a dim, or join its parts, only while no axis further out cuts it: those cut what this one
// left.
bool is_outermost(const Layout& layout, std::size_t axis, const Placement& placement);

// One axis' placement becomes another.
struct Step {
  Change change;
  int axis = 0;
  Placement from, to;
  std::int64_t bytes = 0;  // that a rank sends, as sharding/collective.h says; the most of all ranks
  friend bool operator==(const Step&, const Step&) = default;
};

// The steps of fewest bytes, and of these the fewest steps. Empty where the layouts are the same. Throws
// InvalidInput where a Partial would have to become another kind of Partial through values that are not
// there.
std::vector<Step> redistribution(const Mesh& mesh, const Shape& shape, std::int64_t bytes_per_element,
                                 const Layout& from, const Layout& to);

std::string to_text(const Mesh& mesh, const std::vector<Step>& steps);  // a line each

}  // namespace shoal::sharding
