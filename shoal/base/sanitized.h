// SPDX-License-Identifier: Apache-2.0
// For tests: under sanitizers code is up to ten times as slow, and they look at code rather than at numbers, so that
// tests do less of the same there.
#pragma once

namespace shoal {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace shoal
