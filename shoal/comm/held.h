// SPDX-License-Identifier: Apache-2.0
// Memory of this process that is the communicators' own and no tensor allocator's: what they gave out by
// `allocate`, what calls go through, what ranks tell each other in. Counted where it is taken.
#pragma once

#include <cstdint>

namespace shoal::comm {

// The most at once since this was last asked, or since the process began.
std::int64_t most_held() noexcept;

// Any thread. `bytes`: more, or less, than before.
void hold(std::int64_t bytes) noexcept;

}  // namespace shoal::comm
