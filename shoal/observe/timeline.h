// SPDX-License-Identifier: Apache-2.0
// Traces as a page that any browser opens: ranks × time, in colours, and what each rank has in memory.
#pragma once

#include <string>
#include <vector>

#include "shoal/observe/trace.h"

namespace shoal::observe {

struct Drawing {
  std::string what;              // "measured"; "": there is no other
  const Trace* trace = nullptr;  // borrowed
};

// One file, which loads nothing. A lane a stream, that of "compute" the tallest, and below them one of the rank's memory,
// where that is known; a rank's lanes of several drawings lie below each other, and each begins at 0. What differs in
// numbers alone, as 0F1 and 1F0, has one colour. The wheel zooms, dragging moves, pointing says name and times.
std::string timeline_html(const std::vector<Drawing>& drawings, const std::string& title);

}  // namespace shoal::observe
