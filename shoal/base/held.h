// SPDX-License-Identifier: Apache-2.0
// Memory of this process that a rank answers for, counted where it is taken: tensors', from the allocator
// that the runtime installs, and the communicators' own, which is what they gave out by `allocate`, what calls
// go through, what ranks tell each other in.
#pragma once

#include <cstdint>

namespace shoal {

enum class Holder { Tensors, Communicators };

// Any thread. `bytes`: more, or less, than before. Returns what the holder has now.
std::int64_t hold(Holder holder, std::int64_t bytes) noexcept;
std::int64_t held(Holder holder) noexcept;
// The most that both had at one time since this was last asked, or since the process began.
std::int64_t most_held() noexcept;

}  // namespace shoal
