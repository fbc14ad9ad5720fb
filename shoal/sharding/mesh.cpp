// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/mesh.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <sstream>

#include "shoal/base/error.h"

namespace shoal::sharding {

int Mesh::size() const {
  int size = 1;
  for (const Axis& axis : axes) size *= axis.size;
  return size;
}

int Mesh::axis(std::string_view name) const {
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (axes[i].name == name) return static_cast<int>(i);
  fail(ErrorKind::InvalidInput, "mesh: no axis '", name, "' in '", to_text(*this), "'");
}

// Ranks from one coordinate of the axis to the next.
static int stride_of(const Mesh& mesh, int axis) {
  int stride = 1;
  for (std::size_t inner = static_cast<std::size_t>(axis) + 1; inner < mesh.axes.size(); ++inner)
    stride *= mesh.axes[inner].size;
  return stride;
}

int Mesh::coordinate(int rank, int axis) const {
  return rank / stride_of(*this, axis) % axes.at(static_cast<std::size_t>(axis)).size;
}

std::vector<int> Mesh::corners() const {
  std::vector<int> ranks = {0};
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    if (axes[axis].size == 1) continue;
    const int last = (axes[axis].size - 1) * stride_of(*this, static_cast<int>(axis));
    for (std::size_t i = 0, count = ranks.size(); i < count; ++i) ranks.push_back(ranks[i] + last);
  }
  return ranks;
}

std::vector<int> Mesh::group(int rank, const std::vector<int>& along) const {
  std::vector<int> ranks = {rank};
  for (const int axis : along) {
    const int stride = stride_of(*this, axis);
    std::vector<int> more;
    for (const int member : ranks)
      for (int i = 0; i < axes.at(static_cast<std::size_t>(axis)).size; ++i)
        more.push_back(member + (i - coordinate(member, axis)) * stride);
    ranks = std::move(more);
  }
  std::ranges::sort(ranks);
  return ranks;
}

std::string to_text(const Mesh& mesh) {
  std::string text;
  for (const Axis& axis : mesh.axes) text += concat(text.empty() ? "" : " ", axis.name, "=", axis.size);
  return text;
}

Mesh mesh_from_text(std::string_view text) {
  Mesh mesh;
  std::istringstream words{std::string(text)};
  std::int64_t size = 1;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    SHOAL_CHECK(equals != std::string::npos && equals > 0, InvalidInput, "mesh: '", word,
                "' is not NAME=SIZE, as in 'replicate=2 tensor=3'");
    Axis axis = {.name = word.substr(0, equals), .size = 0};
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data() + equals + 1, end, axis.size);
    SHOAL_CHECK(error == std::errc() && stop == end && axis.size >= 1, InvalidInput, "mesh: the size in '",
                word, "' is not a whole number from 1");
    for (const Axis& other : mesh.axes)
      SHOAL_CHECK(other.name != axis.name, InvalidInput, "mesh: axis '", axis.name, "' is there twice");
    size *= axis.size;
    SHOAL_CHECK(size <= std::numeric_limits<int>::max(), InvalidInput, "mesh: '", text,
                "' has too many ranks");
    mesh.axes.push_back(std::move(axis));
  }
  return mesh;
}

}  // namespace shoal::sharding
