// SPDX-License-Identifier: Apache-2.0
// What tells a constant's values from others, where they are not at hand.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace shoal::ir {

// Of its bytes, row-major: Graph::Source::fingerprint.
inline std::string fingerprint_of(std::span<const std::byte> bytes) {
  const std::string_view view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return std::to_string(std::hash<std::string_view>{}(view));
}

}  // namespace shoal::ir
