// SPDX-License-Identifier: Apache-2.0
// Where the elements of a value are, as SVG: a rectangle in proportion to its shape, a colour for the ranks that have
// a part of it.
//
//   ranks of the innermost axis     a hue each
//   those of axes further out       lighter and lighter
//   what all ranks have             grey
//   summands                        striped: in the hues of the ranks that have one, or in white
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::rewrite {

struct Frame;

// What the same ranks have of a value.
struct Part {
  std::vector<int> ranks;  // the first of them says its colour
  sharding::Box box;
  friend bool operator==(const Part&, const Part&) = default;
};

// In the order of ranks; one, the whole value, where nothing is cut. None where the layout does not fit the mesh.
std::vector<Part> parts_of(const sharding::Mesh& mesh, const sharding::Layout& layout,
                           const sharding::Shape& shape);

// Which of a value's dims a picture of it shows: at most two, in order, those first that a layout cuts.
std::vector<std::size_t> drawn_dims(const sharding::Shape& shape,
                                    const std::vector<sharding::Layout>& layouts);

class Painter {
 public:
  // `unpainted`: an axis that cuts no value, as a pipeline's. Of an axis of many ranks a few stand for all.
  explicit Painter(const sharding::Mesh& mesh, std::string_view unpainted = "");

  // An <svg>; the first of two dims is downwards, the other one, or a single one, across.
  std::string picture(const sharding::Layout& layout, const sharding::Shape& shape,
                      const std::vector<std::size_t>& dims) const;
  // What colour which rank has, as an <svg>; "" of one rank.
  std::string ranks() const;
  bool has_all_ranks() const { return has_all_ranks_; }  // none stands for others
  // The stripes that pictures refer to, once a page.
  std::string patterns() const;

 private:
  struct Colour {
    std::string fill;
    double opacity = 1;
    std::string text;
  };
  Colour colour_of(int rank, const sharding::Layout& layout) const;
  // Of one part, with what it says.
  std::string part(const Part& part, const sharding::Layout& layout, const Frame& frame) const;

  sharding::Mesh mesh_;  // as it is drawn
  bool has_all_ranks_ = true;
  std::vector<std::size_t> axes_;  // that are painted, inner to outer
};

}  // namespace shoal::rewrite
