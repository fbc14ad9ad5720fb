// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/state_blocks.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

namespace shoal::sharding {

static std::int64_t product(const Shape& shape, std::size_t from) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(from), shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

static std::int64_t num_blocks(std::int64_t elements) { return (elements + kStateBlock - 1) / kStateBlock; }

// The innermost dim from which on there are whole blocks; 0 where there is none.
static std::size_t dim_of_blocks(const Shape& shape) {
  std::size_t dim = shape.size() - 1;
  while (dim > 0 && product(shape, dim) % kStateBlock != 0) --dim;
  return dim;
}

bool is_coded(const Shape& shape) { return !shape.empty() && product(shape, 0) >= kFewestCoded; }

Shape maxima_of(const Shape& shape) {
  const std::size_t dim = dim_of_blocks(shape);
  Shape maxima(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(dim));
  maxima.push_back(num_blocks(product(shape, dim)));
  return maxima;
}

std::int64_t rows_together(const Shape& shape) {
  return kStateBlock / std::gcd(product(shape, 1), kStateBlock);
}

static std::vector<Range> without_empty(std::vector<Range> ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.begin == range.end; });
  return ranges;
}

// Of a rank that has these codes; none where they begin or end within a block.
static std::optional<Box> maxima_in(const Box& codes, const Shape& shape) {
  const std::size_t dim = dim_of_blocks(shape);
  const std::int64_t inner = product(shape, dim + 1);
  for (std::size_t i = dim + 1; i < shape.size(); ++i)
    if (without_empty(codes.dims[i]) != std::vector<Range>{{0, shape[i]}}) return std::nullopt;
  Box maxima{.dims = {codes.dims.begin(), codes.dims.begin() + static_cast<std::ptrdiff_t>(dim) + 1}};
  for (Range& range : maxima.dims[dim]) {
    if (range.begin == range.end) continue;
    const bool begins = range.begin * inner % kStateBlock == 0;
    const bool ends = range.end * inner % kStateBlock == 0 || range.end == shape[dim];
    if (!begins || !ends) return std::nullopt;
    range = {range.begin * inner / kStateBlock, num_blocks(range.end * inner)};
  }
  for (auto& ranges : maxima.dims) ranges = without_empty(std::move(ranges));
  return maxima;
}

static bool are_alike(const Mesh& mesh, const Layout& maxima, const std::vector<Box>& wanted,
                      const Shape& shape) {
  const Shape of_maxima = maxima_of(shape);
  if (!misfit(mesh, maxima, of_maxima).empty()) return false;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    Box box = box_of(mesh, maxima, of_maxima, rank);
    for (auto& ranges : box.dims) ranges = without_empty(std::move(ranges));
    const Box& own = wanted[static_cast<std::size_t>(rank)];
    if (box != own && !(box.shape() == own.shape() && product(box.shape(), 0) == 0)) return false;
  }
  return true;
}

std::optional<Layout> layout_of_maxima(const Mesh& mesh, const Layout& codes, const Shape& shape) {
  const auto dim = static_cast<int>(dim_of_blocks(shape));
  std::vector<Box> wanted;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    auto box = maxima_in(box_of(mesh, codes, shape, rank), shape);
    if (!box) return std::nullopt;
    wanted.push_back(std::move(*box));
  }
  Layout alike = codes, weighted = codes;
  for (std::size_t axis = 0; axis < codes.placements.size(); ++axis) {
    const auto* shard = std::get_if<Shard>(&codes.placements[axis]);
    if (shard == nullptr || shard->dim != dim) continue;
    alike.placements[axis] = Shard{.dim = dim, .outer = shard->outer};
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(mesh.axes[axis].size));
    for (int rank = 0; rank < mesh.size(); ++rank) {
      std::int64_t size = 0;
      for (const Range& range : wanted[static_cast<std::size_t>(rank)].dims[static_cast<std::size_t>(dim)])
        size += range.end - range.begin;
      sizes[static_cast<std::size_t>(mesh.coordinate(rank, static_cast<int>(axis)))] = size;
    }
    weighted.placements[axis] = Shard{.dim = dim, .outer = shard->outer, .weights = std::move(sizes)};
  }
  for (const Layout& layout : {alike, weighted})
    if (are_alike(mesh, layout, wanted, shape)) return layout;
  return std::nullopt;
}

}  // namespace shoal::sharding
