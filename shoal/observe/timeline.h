// SPDX-License-Identifier: Apache-2.0
// A trace as a page that any browser opens: ranks × time, in colours.
#pragma once

#include <string>

#include "shoal/observe/trace.h"

namespace shoal::observe {

// One file, which loads nothing. A lane a stream, that of "compute" the tallest; what differs in numbers
// alone, as 0F1 and 1F0, has one colour. The wheel zooms, dragging moves, pointing says name and times.
std::string timeline_html(const Trace& trace, const std::string& title);

}  // namespace shoal::observe
