// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/between_meshes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::sharding {

static std::int64_t size_of(const std::vector<Range>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t size, Range range) { return size + range.end - range.begin; });
}

std::int64_t Delivery::num_elements() const {
  std::int64_t elements = 1;
  for (const auto& ranges : box.dims) elements *= size_of(ranges);
  return elements;
}

// In the order of `a`.
static std::vector<Range> met(const std::vector<Range>& a, const std::vector<Range>& b) {
  std::vector<Range> both;
  for (const Range& one : a)
    for (const Range& other : b)
      if (const Range range{std::max(one.begin, other.begin), std::min(one.end, other.end)};
          range.begin < range.end)
        both.push_back(range);
  return both;
}

static std::optional<Box> met(const Box& a, const Box& b) {
  Box both;
  for (std::size_t dim = 0; dim < a.dims.size(); ++dim) {
    both.dims.push_back(met(a.dims[dim], b.dims[dim]));
    if (both.dims.back().empty()) return std::nullopt;
  }
  return both;
}

static void check(const Submesh& submesh, const Layout& layout, const Shape& shape) {
  SHOAL_CHECK(submesh.ranks.size() == static_cast<std::size_t>(submesh.mesh.size()), InvalidInput,
              "deliveries: mesh '", to_text(submesh.mesh), "' has ", submesh.mesh.size(), " ranks, and ",
              submesh.ranks.size(), " are named");
  const std::string why = misfit(submesh.mesh, layout, shape);
  SHOAL_CHECK(why.empty(), InvalidInput, "deliveries: a value cannot be ", to_text(layout), " on mesh '",
              to_text(submesh.mesh), "': ", why);
  for (const Placement& placement : layout.placements)
    SHOAL_CHECK(!std::holds_alternative<Partial>(placement), InvalidInput, "deliveries: ", to_text(layout),
                " has summands; sum them up first, on their own mesh");
}

namespace {
// A part, and those that have it.
struct Part {
  Box box;
  std::vector<int> ranks;
  std::size_t turns = 0;
};
}  // namespace

// Parts do not overlap: those of two ranks are the same, or have nothing in common.
static std::vector<Part> parts_of(const Submesh& from, const Layout& layout, const Shape& shape) {
  std::vector<Part> parts;
  std::map<std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>, std::size_t> known;
  for (int rank = 0; rank < from.mesh.size(); ++rank) {
    Box box = box_of(from.mesh, layout, shape, rank);
    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> key;
    for (const auto& ranges : box.dims) {
      key.emplace_back();
      for (const Range& range : ranges) key.back().emplace_back(range.begin, range.end);
    }
    const auto [found, is_new] = known.emplace(std::move(key), parts.size());
    if (is_new) parts.push_back({std::move(box), {}});
    parts[found->second].ranks.push_back(from.ranks[static_cast<std::size_t>(rank)]);
  }
  return parts;
}

std::vector<Delivery> deliveries(const Submesh& from, const Layout& has, const Submesh& to,
                                 const Layout& wants, const Shape& shape) {
  check(from, has, shape);
  check(to, wants, shape);
  std::vector<Part> parts = parts_of(from, has, shape);
  std::vector<Delivery> all;
  for (int rank = 0; rank < to.mesh.size(); ++rank) {
    const int receiver = to.ranks[static_cast<std::size_t>(rank)];
    const Box wanted = box_of(to.mesh, wants, shape, rank);
    for (Part& part : parts) {
      auto box = met(wanted, part.box);
      if (!box) continue;
      const bool has_it = std::ranges::find(part.ranks, receiver) != part.ranks.end();
      const int sender = has_it ? receiver : part.ranks[part.turns++ % part.ranks.size()];
      all.push_back({sender, receiver, std::move(*box)});
    }
  }
  return all;
}

}  // namespace shoal::sharding
