// SPDX-License-Identifier: Apache-2.0
// Where two captures of what should be the same model differ, in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shoal/ir/graph.h"

namespace shoal::capture {

struct Difference {
  std::optional<std::uint32_t> node;  // none: in what the model returns
  std::string what;  // "calls aten::mul.Scalar with other arguments each time (other: 1, then 2)"
};

// When the two were made, as a sentence has it.
struct Occasions {
  const char* compared;  // "each time"
  const char* first;     // "the first time"
  const char* second;
};

// The first node or constant in which they differ; none where they are the same. Paths of modules do not
// count.
std::optional<Difference> difference(const ir::Graph& first, const ir::Graph& second,
                                     const Occasions& occasions);

}  // namespace shoal::capture
