// SPDX-License-Identifier: Apache-2.0
// Communicators that go on by themselves: each has a thread that makes its calls, so that communication
// overlaps computation. Calls on one are in order; calls on different ones are not, and overlap.
#pragma once

#include <memory>
#include <vector>

#include "shoal/comm/communicator.h"

namespace shoal::comm {

// `inner`, driven by a thread of its own. Its memory and its subgroups are those of `inner`: a subgroup goes
// on only inside its calls, unless it is wrapped too.
std::unique_ptr<Communicator> with_progress_thread(std::unique_ptr<Communicator> inner);

// `count` communicators between the ranks of `parent`, each with its thread. Every rank of `parent` calls it.
// Throws InvalidInput for fewer than one.
std::vector<std::unique_ptr<Communicator>> make_pool(Communicator& parent, int count);

}  // namespace shoal::comm
