// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/layout_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>

#include "shoal/base/error.h"

namespace shoal::rewrite {

using sharding::Layout;
using sharding::Mesh;
using sharding::Partial;
using sharding::Range;
using sharding::Shape;
using sharding::Shard;

namespace {

constexpr int kMostRanks = 8;            // of an axis
constexpr std::int64_t kMostBlocks = 8;  // that one Shard cuts alike
constexpr std::size_t kMostParts = 512;  // of one picture
constexpr double kLeft = 40, kTop = 15, kEdge = 8, kLeastSide = 22, kFlat = 13;

struct Rgb {
  int red, green, blue;
};
constexpr std::array<Rgb, kMostRanks> kHues = {{{62, 115, 176},
                                                {236, 130, 44},
                                                {72, 152, 82},
                                                {160, 98, 164},
                                                {213, 78, 80},
                                                {64, 160, 164},
                                                {196, 158, 40},
                                                {140, 104, 84}}};
constexpr Rgb kNeutral = {126, 138, 151};  // of parts that are cut, but not along the innermost axis
constexpr std::string_view kWhole = "#dde2e8";

}  // namespace

static std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

static std::string mixed_with_white(Rgb colour, double share) {
  const auto mix = [&](int part) { return static_cast<int>(std::lround(part + (255 - part) * share)); };
  char text[32];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", mix(colour.red), mix(colour.green), mix(colour.blue));
  return text;
}

static std::vector<std::size_t> cutting_axes(const Mesh& mesh, const Layout& layout) {
  std::vector<std::size_t> axes;
  for (std::size_t axis = mesh.axes.size(); axis-- > 0;)
    if (mesh.axes[axis].size > 1 && std::holds_alternative<Shard>(layout.placements[axis]))
      axes.push_back(axis);
  return axes;
}

std::vector<Part> parts_of(const Mesh& mesh, const Layout& layout, const Shape& shape) {
  if (!sharding::misfit(mesh, layout, shape).empty()) return {};
  std::vector<Part> parts;
  std::map<std::vector<int>, std::size_t> known;  // by the coordinates that matter
  const std::vector<std::size_t> axes = cutting_axes(mesh, layout);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::vector<int> place;
    for (const std::size_t axis : axes) place.push_back(mesh.coordinate(rank, static_cast<int>(axis)));
    const auto [at, is_new] = known.try_emplace(std::move(place), parts.size());
    if (is_new) parts.push_back({.ranks = {}, .box = sharding::box_of(mesh, layout, shape, rank)});
    parts[at->second].ranks.push_back(rank);
  }
  return parts;
}

std::vector<std::size_t> drawn_dims(const Shape& shape, const std::vector<Layout>& layouts) {
  std::vector<std::size_t> dims;
  const auto add = [&](std::size_t dim) {
    if (dims.size() < 2 && dim < shape.size() && std::ranges::find(dims, dim) == dims.end())
      dims.push_back(dim);
  };
  for (const Layout& layout : layouts)
    for (const auto& placement : layout.placements)
      if (const auto* shard = std::get_if<Shard>(&placement)) add(static_cast<std::size_t>(shard->dim));
  if (shape.size() == 3) add(2);  // of a stack of sheets one
  if (shape.size() == 3) add(1);
  add(0);
  add(1);
  std::ranges::sort(dims);
  return dims;
}

Painter::Painter(const Mesh& mesh, std::string_view unpainted) : mesh_(mesh) {
  for (std::size_t axis = mesh_.axes.size(); axis-- > 0;) {
    auto& [name, size] = mesh_.axes[axis];
    if (name == unpainted) size = 1;
    if (size > kMostRanks) has_all_ranks_ = false;
    size = std::min(size, kMostRanks);
    if (size > 1) axes_.push_back(axis);
  }
  has_all_ranks_ = has_all_ranks_ && mesh_.size() == mesh.size();
}

static std::string summands_of(std::size_t axis) { return concat("url(#summands-", axis, ")"); }

Painter::Colour Painter::colour_of(int rank, const Layout& layout) const {
  const std::vector<std::size_t> cutting = cutting_axes(mesh_, layout);
  const auto is_cut = [&](std::size_t axis) { return std::ranges::find(cutting, axis) != cutting.end(); };
  int tint = 0, tints = 1;
  for (const std::size_t axis : axes_) {
    if (axis == axes_.front() || !is_cut(axis)) continue;
    tint += tints * mesh_.coordinate(rank, static_cast<int>(axis));
    tints *= mesh_.axes[axis].size;
  }
  const double share = tints > 1 ? 0.62 * tint / (tints - 1) : 0;
  const std::string text = share > 0.35 ? "#222" : "#fff";
  if (!axes_.empty() && std::holds_alternative<Partial>(layout.placements[axes_.front()]))
    return {summands_of(axes_.front()), 1 - share, text};
  if (cutting.empty()) return {std::string(kWhole), 1, text};
  const auto hue = static_cast<std::size_t>(mesh_.coordinate(rank, static_cast<int>(axes_.front())));
  return {mixed_with_white(is_cut(axes_.front()) ? kHues[hue] : kNeutral, share), 1, text};
}

// As few blocks as can be drawn, each cut as all are.
static void simplify(Layout& layout, Shape& shape) {
  for (auto& placement : layout.placements) {
    auto* shard = std::get_if<Shard>(&placement);
    if (shard == nullptr) continue;
    shard->weights = {};
    auto& size = shape[static_cast<std::size_t>(shard->dim)];
    if (shard->outer <= kMostBlocks || size % shard->outer != 0) continue;
    size = size / shard->outer * kMostBlocks;
    shard->outer = kMostBlocks;
  }
}

static std::string rectangle(double x, double y, double width, double height, std::string_view fill,
                             std::string_view more = "/>") {
  return concat("<rect x='", number(x), "' y='", number(y), "' width='", number(width), "' height='",
                number(height), "' fill='", fill, "'", more);
}

static std::string label(double x, double y, std::string_view colour, std::string_view text,
                         std::string_view more = "") {
  return concat("<text x='", number(x), "' y='", number(y), "' fill='", colour, "' ", more, ">", text,
                "</text>");
}

// Pixels of a picture's two sides: the longer one grows with the logarithm, the other one is in proportion.
static std::pair<double, double> sides_of(double down, double across) {
  const double most = std::max({down, across, 1.0});
  const double longer = std::clamp(8 * std::log2(most), 26.0, 104.0);
  const auto side = [&](double size) { return std::max(longer * size / most, kLeastSide); };
  return {side(down), side(across)};
}

static std::string text_of_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i) text += concat(i == 0 ? "" : ", ", ranks[i]);
  return ranks.size() > 8 ? text + ", …" : text;
}

// Of dims that are not drawn the beginning is.
static bool is_in_front(const sharding::Box& box, const std::vector<std::size_t>& dims) {
  for (std::size_t dim = 0; dim < box.dims.size(); ++dim)
    if (std::ranges::find(dims, dim) == dims.end() && (box.dims[dim].empty() || box.dims[dim][0].begin > 0))
      return false;
  return true;
}

// Where a value is drawn.
struct Frame {
  double left = 0, top = 0, width = 0, height = 0;
  // Of what is drawn downwards and across; nullopt: all in one.
  std::optional<std::size_t> rows, columns;
  double num_rows = 1, num_columns = 1;
};

// Whether other dims make a stack of what is drawn.
static bool has_depth(const Shape& shape, const std::vector<std::size_t>& dims) {
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    if (shape[dim] > 1 && std::ranges::find(dims, dim) == dims.end()) return true;
  return false;
}

static Frame frame_of(const Shape& shape, const Shape& drawn, const std::vector<std::size_t>& dims) {
  Frame frame{.left = 1, .top = kTop + (has_depth(shape, dims) ? kEdge : 0), .rows = {}, .columns = {}};
  const auto size_of = [&](std::size_t dim) { return static_cast<double>(shape[dim]); };
  if (dims.empty()) {
    frame.top = kEdge;
    frame.width = frame.height = kFlat;
    return frame;
  }
  frame.columns = dims.back();
  frame.num_columns = static_cast<double>(drawn[dims.back()]);
  if (dims.size() == 1) {
    frame.height = kFlat;
    frame.width = sides_of(1, size_of(dims[0])).second;
    return frame;
  }
  frame.left = kLeft;
  frame.rows = dims[0];
  frame.num_rows = static_cast<double>(drawn[dims[0]]);
  std::tie(frame.height, frame.width) = sides_of(size_of(dims[0]), size_of(dims[1]));
  return frame;
}

std::string Painter::part(const Part& part, const Layout& layout, const Frame& frame) const {
  const auto& [ranks, box] = part;
  const auto [fill, opacity, ink] = colour_of(ranks.front(), layout);
  const bool is_cut = ranks.size() < static_cast<std::size_t>(mesh_.size());
  const bool has_summands = std::ranges::any_of(
      layout.placements, [](const auto& each) { return std::holds_alternative<Partial>(each); });
  const std::vector<Range> all = {{0, 1}};
  const std::string name = text_of_ranks(ranks);
  const std::string title =
      has_all_ranks_ ? concat("<title>", ranks.size() == 1 ? "rank " : "ranks ", name, "</title>") : "";
  std::string text;
  for (const Range& row : frame.rows ? box.dims[*frame.rows] : all)
    for (const Range& column : frame.columns ? box.dims[*frame.columns] : all) {
      const double x = frame.left + frame.width * static_cast<double>(column.begin) / frame.num_columns;
      const double y = frame.top + frame.height * static_cast<double>(row.begin) / frame.num_rows;
      const double w = frame.width * static_cast<double>(column.end - column.begin) / frame.num_columns;
      const double h = frame.height * static_cast<double>(row.end - row.begin) / frame.num_rows;
      text += rectangle(x, y, w, h, fill,
                        concat(opacity < 1 ? concat(" fill-opacity='", number(opacity), "'") : "",
                               is_cut && std::min(w, h) > 4 ? " stroke='#fff'>" : ">", title, "</rect>"));
      const double wide = 6.0 * static_cast<double>(name.size()) + 4;
      if (is_cut && !has_summands && has_all_ranks_ && h >= 12 && w >= wide)
        text += label(x + w / 2, y + h / 2 + 3.5, ink, name, "class='rank'");
    }
  return text;
}

std::string Painter::picture(const Layout& given, const Shape& given_shape,
                             const std::vector<std::size_t>& dims) const {
  Layout layout = given;
  Shape shape = given_shape;
  simplify(layout, shape);
  const Frame frame = frame_of(given_shape, shape, dims);
  const auto& [left, top, width, height] = std::tie(frame.left, frame.top, frame.width, frame.height);
  std::string text = concat("<svg width='", number(left + width + kEdge + 2), "' height='",
                            number(top + height + 2), "' role='img'>");
  if (has_depth(given_shape, dims))
    for (const double back : {kEdge, kEdge / 2})
      text += rectangle(left + back, top - back, width, height, "#fff", " stroke='#a8b1bc'/>");
  const std::vector<Part> parts = parts_of(mesh_, layout, shape);
  if (parts.empty() || parts.size() > kMostParts)
    text += rectangle(left, top, width, height, kWhole);
  else
    for (const Part& each : parts)
      if (is_in_front(each.box, dims)) text += part(each, layout, frame);
  std::string sums;
  for (const std::size_t axis : axes_)
    if (const auto* partial = std::get_if<Partial>(&layout.placements[axis])) {
      sums = name_of(partial->combine);
      if (axis != axes_.front()) text += rectangle(left, top, width, height, summands_of(axis));
    }
  text += rectangle(left, top, width, height, "none", " stroke='#5b6673'/>");
  if (const double wide = 6.2 * static_cast<double>(sums.size()) + 4; !sums.empty() && width >= wide)
    text += rectangle(left + (width - wide) / 2, top + height / 2 - 6, wide, 12, "#fff", " rx='3'/>") +
            label(left + width / 2, top + height / 2 + 3, "#222", sums, "class='rank'");
  if (frame.columns)
    text += label(left, kTop - 4, "#66707c", concat(given_shape[*frame.columns]), "class='size'");
  if (frame.rows)
    text += label(left - 4, top + std::min(height, 10.0), "#66707c", concat(given_shape[*frame.rows]),
                  "class='size' text-anchor='end'");
  return text + "</svg>";
}

std::string Painter::ranks() const {
  if (axes_.empty()) return "";
  const std::size_t inner = axes_.front();
  const int across = mesh_.axes[inner].size, down = mesh_.size() / across;
  constexpr double kCell = 26, kName = 78;
  Layout cut = sharding::replicated(mesh_);
  for (const std::size_t axis : axes_) cut.placements[axis] = Shard{};
  std::string rows;
  int row = 0;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    if (mesh_.coordinate(rank, static_cast<int>(inner)) != 0) continue;
    std::string place;
    for (std::size_t i = 1; i < axes_.size(); ++i)
      place = concat(mesh_.axes[axes_[i]].name, ' ', mesh_.coordinate(rank, static_cast<int>(axes_[i])),
                     place.empty() ? "" : " ", place);
    const double y = 18 + kCell * row++;
    rows += label(0, y + 16, "#444", place);
    for (const int member : mesh_.group(rank, {static_cast<int>(inner)})) {
      const auto [fill, opacity, ink] = colour_of(member, cut);
      const double x = kName + kCell * mesh_.coordinate(member, static_cast<int>(inner));
      rows += rectangle(x, y, kCell - 2, kCell - 2, fill, " rx='2'/>");
      if (has_all_ranks_) rows += label(x + kCell / 2 - 1, y + 16, ink, concat(member), "class='rank'");
    }
  }
  return concat("<svg width='", number(kName + std::max(kCell * across, 120.0)), "' height='",
                number(20 + kCell * down), "' role='img'>", label(kName, 11, "#444", mesh_.axes[inner].name),
                rows, "</svg>");
}

// Of the innermost axis in its hues, of others light over what is there.
std::string Painter::patterns() const {
  std::string text = "<svg width='0' height='0' style='position:absolute'><defs>";
  constexpr double kStripe = 5;
  for (const std::size_t axis : axes_) {
    const bool has_hues = axis == axes_.front();
    const int stripes = mesh_.axes[axis].size;
    const double wide = has_hues ? kStripe * stripes : 2 * kStripe;
    text += concat("<pattern id='summands-", axis, "' patternUnits='userSpaceOnUse' width='", number(wide),
                   "' height='8' patternTransform='rotate(", has_hues ? 45 : -45, ")'>");
    if (has_hues)
      for (int rank = 0; rank < stripes; ++rank)
        text += rectangle(kStripe * rank, 0, kStripe, 8,
                          mixed_with_white(kHues[static_cast<std::size_t>(rank)], 0.25));
    else
      text += rectangle(0, 0, 2, 8, "#fff", " fill-opacity='0.65'/>");
    text += "</pattern>";
  }
  return text + "</defs></svg>";
}

}  // namespace shoal::rewrite
