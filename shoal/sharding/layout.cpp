// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/names.h"

namespace shoal::sharding {

constexpr Names<Combine, 3> kCombines = {
    {{Combine::Sum, "sum"}, {Combine::Min, "min"}, {Combine::Max, "max"}}};

std::string_view name_of(Combine combine) { return name_in(kCombines, combine); }

Combine combine_from_text(std::string_view name) {
  const auto combine = parse_in(kCombines, name);
  SHOAL_CHECK(combine, InvalidInput, "combine is '", name, "', not sum, min or max");
  return *combine;
}

Weights::Weights(std::vector<std::int64_t> weights) {
  static std::mutex mutex;  // guards known
  static std::set<std::vector<std::int64_t>> known;
  if (weights.empty()) return;
  const std::scoped_lock lock(mutex);
  weights_ = &*known.insert(std::move(weights)).first;
}

Layout replicated(const Mesh& mesh) { return {std::vector<Placement>(mesh.axes.size(), Replicate{})}; }

std::string to_text(const Placement& placement) {
  if (const auto* shard = std::get_if<Shard>(&placement)) {
    std::string weights;
    for (const std::int64_t weight : shard->weights.all())
      weights += concat(weights.empty() ? ", weights=" : ":", weight);
    return concat("S(", shard->dim, shard->outer == 1 ? "" : concat(", outer=", shard->outer),
                  shard->unit == 1 ? "" : concat(", unit=", shard->unit), weights, ")");
  }
  if (const auto* partial = std::get_if<Partial>(&placement))
    return concat("P(", name_in(kCombines, partial->combine), ")");
  return "R";
}

std::string to_text(const Layout& layout) {
  std::string text;
  for (const Placement& placement : layout.placements)
    text += concat(text.empty() ? "" : ", ", to_text(placement));
  return concat("[", text, "]");
}

namespace {

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool take(std::string_view word) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void want(std::string_view word) {
    if (!take(word)) wrong(concat("'", word, "'"));
  }
  template <class Number>
  Number number() {
    skip_spaces();
    Number value = 0;
    const auto [stop, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) wrong("a whole number");
    at_ = static_cast<std::size_t>(stop - text_.data());
    return value;
  }
  bool at_end() {
    skip_spaces();
    return at_ == text_.size();
  }
  [[noreturn]] void wrong(const std::string& wanted) const {
    fail(ErrorKind::InvalidInput, "layout: '", text_, "': wanted ", wanted, " at '", text_.substr(at_),
         "', as in '[R, S(1, outer=3, unit=64), P(sum)]'");
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

static Placement read_placement(Reader& reader) {
  if (reader.take("R")) return Replicate{};
  if (reader.take("P(")) {
    for (const auto& [combine, name] : kCombines)
      if (reader.take(name)) {
        reader.want(")");
        return Partial{combine};
      }
    reader.wrong("sum, min or max");
  }
  if (!reader.take("S(")) reader.wrong("R, S(dim) or P(sum)");
  Shard shard = {.dim = reader.number<int>()};
  while (reader.take(",")) {
    if (reader.take("weights=")) {
      std::vector<std::int64_t> weights;
      do weights.push_back(reader.number<std::int64_t>());
      while (reader.take(":"));
      if (std::ranges::count(weights, 0) == std::ssize(weights)) reader.wrong("weights that are not all 0");
      shard.weights = std::move(weights);
      continue;
    }
    std::int64_t& field = reader.take("outer=") ? shard.outer : (reader.want("unit="), shard.unit);
    field = reader.number<std::int64_t>();
    if (field == 0) reader.wrong("a number from 1");
  }
  reader.want(")");
  return shard;
}

Layout layout_from_text(std::string_view text) {
  Reader reader(text);
  Layout layout;
  reader.want("[");
  if (!reader.take("]")) {
    do layout.placements.push_back(read_placement(reader));
    while (reader.take(","));
    reader.want("]");
  }
  if (!reader.at_end()) reader.wrong("the end");
  return layout;
}

static std::int64_t length_of(const std::vector<Range>& ranges) {
  std::int64_t length = 0;
  for (const Range& range : ranges) length += range.end - range.begin;
  return length;
}

Shape Box::shape() const {
  Shape shape;
  for (const auto& ranges : dims) shape.push_back(length_of(ranges));
  return shape;
}

Range units_of(const Shard& shard, std::int64_t units, int index, int count) {
  const auto begin = [&](int i) {
    if (shard.weights.empty()) return units / count * i + std::min<std::int64_t>(i, units % count);
    const auto weights = shard.weights.all();
    const auto first = weights.begin();
    const auto before = std::accumulate(first, first + i, std::int64_t{0});
    return units * before / std::accumulate(first, weights.end(), std::int64_t{0});
  };
  return {begin(index), begin(index + 1)};
}

// The indices at these positions of the ranges, one after the other; joined where they go on.
static void append_positions(const std::vector<Range>& ranges, Range positions, std::vector<Range>& out) {
  std::int64_t before = 0;
  for (const Range& range : ranges) {
    const std::int64_t length = range.end - range.begin;
    const std::int64_t begin = std::clamp<std::int64_t>(positions.begin - before, 0, length);
    const std::int64_t end = std::clamp<std::int64_t>(positions.end - before, 0, length);
    if (begin < end) {
      if (!out.empty() && out.back().end == range.begin + begin)
        out.back().end = range.begin + end;
      else
        out.push_back({range.begin + begin, range.begin + end});
    }
    before += length;
  }
}

static std::vector<Range> cut(const std::vector<Range>& ranges, const Shard& shard, int index, int count) {
  const std::int64_t block = length_of(ranges) / shard.outer;
  const Range units = units_of(shard, block / shard.unit, index, count);
  std::vector<Range> mine;
  for (std::int64_t i = 0; i < shard.outer; ++i)
    append_positions(ranges, {i * block + units.begin * shard.unit, i * block + units.end * shard.unit},
                     mine);
  return mine;
}

namespace {

struct BoxOrMisfit {
  Box box;
  std::string misfit;
};

}  // namespace

static BoxOrMisfit try_box(const Mesh& mesh, const Layout& layout, const Shape& shape, int rank) {
  if (layout.placements.size() != mesh.axes.size())
    return {{},
            concat("it has ", layout.placements.size(), " placements, and mesh '", to_text(mesh), "' ",
                   mesh.axes.size(), " axes")};
  const Partial* partial = nullptr;
  for (const Placement& placement : layout.placements)
    if (const auto* other = std::get_if<Partial>(&placement)) {
      if (partial != nullptr && *partial != *other)
        return {{}, concat(to_text(*partial), " and ", to_text(*other), " do not go together")};
      partial = other;
    }
  Box box;
  for (const std::int64_t size : shape)
    box.dims.push_back(size == 0 ? std::vector<Range>{} : std::vector<Range>{{0, size}});
  for (std::size_t axis = mesh.axes.size(); axis-- > 0;) {
    const auto* shard = std::get_if<Shard>(&layout.placements[axis]);
    if (shard == nullptr) continue;
    if (shard->dim < 0 || shard->dim >= static_cast<int>(shape.size()))
      return {{}, concat("no dim ", shard->dim, " in a value of ", shape.size(), " dims")};
    if (!shard->weights.empty() && std::ssize(shard->weights.all()) != mesh.axes[axis].size)
      return {{},
              concat(to_text(*shard), " has ", shard->weights.size(), " weights, and axis ",
                     mesh.axes[axis].name, ' ', mesh.axes[axis].size, " ranks")};
    auto& ranges = box.dims[static_cast<std::size_t>(shard->dim)];
    if (length_of(ranges) % (shard->outer * shard->unit) != 0)
      return {{},
              concat("dim ", shard->dim, " is ", length_of(ranges), " where axis ", mesh.axes[axis].name,
                     " cuts it, not a multiple of outer x unit = ", shard->outer * shard->unit)};
    ranges = cut(ranges, *shard, mesh.coordinate(rank, static_cast<int>(axis)), mesh.axes[axis].size);
  }
  return {std::move(box), ""};
}

std::vector<int> corners(const Mesh& mesh, const Layout& layout) {
  std::vector<int> weighing;
  for (std::size_t axis = 0; axis < layout.placements.size() && axis < mesh.axes.size(); ++axis)
    if (const auto* shard = std::get_if<Shard>(&layout.placements[axis]); shard && !shard->weights.empty())
      weighing.push_back(static_cast<int>(axis));
  std::vector<int> ranks = mesh.corners();
  if (weighing.empty()) return ranks;
  std::set<int> all;
  for (const int rank : ranks)
    for (const int other : mesh.group(rank, weighing)) all.insert(other);
  return {all.begin(), all.end()};
}

std::string misfit(const Mesh& mesh, const Layout& layout, const Shape& shape) {
  for (const int rank : corners(mesh, layout))
    if (std::string why = try_box(mesh, layout, shape, rank).misfit; !why.empty()) return why;
  return "";
}

Box box_of(const Mesh& mesh, const Layout& layout, const Shape& shape, int rank) {
  auto [box, why] = try_box(mesh, layout, shape, rank);
  SHOAL_CHECK(why.empty(), InvalidInput, "layout ", to_text(layout), ": ", why);
  return std::move(box);
}

Shape local_shape(const Mesh& mesh, const Layout& layout, const Shape& shape, int rank) {
  return box_of(mesh, layout, shape, rank).shape();
}

}  // namespace shoal::sharding
