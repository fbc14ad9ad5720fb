// SPDX-License-Identifier: Apache-2.0
// What a report's texts and pages share of words.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shoal/rewrite/report.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::rewrite {

// "shard=S(0)", "tensor=S(1)"; none where it is whole. Axes of one rank place nothing.
std::vector<std::string> placements_text(const sharding::Mesh& mesh, const sharding::Layout& layout);
// "shard=S(0) tensor=S(1)", or "whole".
std::string layout_text(const sharding::Mesh& mesh, const sharding::Layout& layout);
// "tensor=S(1)", or "shard=S(0) -> whole" of a parameter that is kept otherwise than it is used.
std::string layouts_text(const sharding::Mesh& mesh, const LayerLine& line);
std::string shape_text(const sharding::Shape& shape);  // "[8, 16]"
std::string name_of(const LayerLine& line);            // "h.*.fc x4", "(the model)"
std::string percent(double share);                     // "12.50 %"

// With at least one space behind it.
std::string padded(std::string text, std::size_t width);

}  // namespace shoal::rewrite
