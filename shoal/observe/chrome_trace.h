// SPDX-License-Identifier: Apache-2.0
// A trace in the format that chrome://tracing and ui.perfetto.dev open.
#pragma once

#include <string>

#include "shoal/observe/trace.h"

namespace shoal::observe {

// One process a rank, one thread a stream, times in microseconds from the first event's begin. What was
// dropped is said under "otherData".
std::string chrome_trace(const Trace& trace);

}  // namespace shoal::observe
