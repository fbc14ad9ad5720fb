// SPDX-License-Identifier: Apache-2.0
// Where the elements of a value are: one placement for each axis of its mesh.
//
// The innermost axis cuts first, each axis further out cuts what is left: a weight that is cut over `tensor`
// and stored in parts over `shard` is, gathered over `shard`, again what tensor parallelism works with.
//
//   shape [6], mesh shard=2 tensor=2, layout [S(0), S(0)]
//     tensor cuts     0 1 2 | 3 4 5
//     shard cuts      0 1 / 2 | 3 4 / 5       rank (0,0) holds 0 1, (0,1) 3 4, (1,0) 2, (1,1) 5
//
// A Shard may name a factor in the middle of a dim: dim = outer x n x unit, cut on n. A fused projection to
// queries, keys and values (3 x heads x head size in one dim) is cut by heads with outer = 3 and unit = head
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shoal/sharding/mesh.h"

namespace shoal::sharding {

// Every rank of the axis has all of it.
struct Replicate {
  friend bool operator==(Replicate, Replicate) = default;
};

// One number for each rank of an axis. Equal ones share their memory, which stays: a copy is a pointer's.
class Weights {
 public:
  Weights() = default;
  // By rank along the axis; an empty list is none.
  Weights(std::vector<std::int64_t> weights);
  bool empty() const { return weights_ == nullptr; }
  std::size_t size() const { return empty() ? 0 : weights_->size(); }
  std::span<const std::int64_t> all() const { return empty() ? std::span<const std::int64_t>() : *weights_; }
  friend bool operator==(Weights, Weights) = default;

 private:
  const std::vector<std::int64_t>* weights_ = nullptr;
};

// Rank i has part i of the dim. Parts differ by one unit at most, the larger ones first; they may be empty.
struct Shard {
  int dim = 0;
  std::int64_t outer = 1;  // the dim is this many blocks one after the other, and each of them is cut
  std::int64_t unit = 1;   // elements that stay together
  // Of each rank, where parts are not to be alike: part i is weights[i] of their sum, rounded down at both
  // ends. Sizes themselves are weights; [0, 1, 0] gives the second of three ranks all there is. Empty: alike.
  Weights weights = {};
  friend bool operator==(const Shard&, const Shard&) = default;
};

// The ranks of the axis have values of the whole shape, which combined are the value. Partials of one layout
// are all of one kind: a sum of maxima is not the maximum of sums.
enum class Combine { Sum, Min, Max };
std::string_view name_of(Combine combine);         // "sum"
Combine combine_from_text(std::string_view name);  // throws InvalidInput with the names there are
struct Partial {
  Combine combine = Combine::Sum;  // elementwise, over the ranks of the axis
  friend bool operator==(Partial, Partial) = default;
};

// What one axis of the mesh does to a value.
using Placement = std::variant<Replicate, Shard, Partial>;

struct Layout {
  std::vector<Placement> placements;  // by axis of the mesh
  friend bool operator==(const Layout&, const Layout&) = default;
};

Layout replicated(const Mesh& mesh);  // along every axis

// "R", "S(1)", "S(1, outer=3, unit=64)", "S(0, weights=2:1)", "P(sum)"
std::string to_text(const Placement& placement);
std::string to_text(const Layout& layout);  // "[R, S(0)]"
// Throws InvalidInput saying what was read and what is wanted.
Layout layout_from_text(std::string_view text);

using Shape = std::vector<std::int64_t>;  // elements, dim by dim

struct Range {  // from begin up to end, which is not in it
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(Range, Range) = default;
};
// Which indices of each dim a rank holds, in the order in which it holds them.
struct Box {
  std::vector<std::vector<Range>> dims;  // by dim
  friend bool operator==(const Box&, const Box&) = default;
  Shape shape() const;  // how many each dim has
};

// Which of so many units of a dim part `index` of `count` is.
Range units_of(const Shard& shard, std::int64_t units, int index, int count);

// Ranks among which there is each size that parts of this layout can have on any rank: the corners of the
// mesh, and all ranks along an axis that cuts by weights.
std::vector<int> corners(const Mesh& mesh, const Layout& layout);

// What is wrong with the layout for such a value: partials of two kinds, a Shard of a dim that is not there,
// of one that is, on some rank, not a multiple of outer x unit, or by weights of other ranks than there are.
// Empty where nothing is.
std::string misfit(const Mesh& mesh, const Layout& layout, const Shape& shape);
// What a rank holds of a value of that shape, and its shape. Both throw InvalidInput with the misfit, if
// there is one on this rank.
Box box_of(const Mesh& mesh, const Layout& layout, const Shape& shape, int rank);
Shape local_shape(const Mesh& mesh, const Layout& layout, const Shape& shape, int rank);

}  // namespace shoal::sharding
