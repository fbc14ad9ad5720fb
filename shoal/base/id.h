// SPDX-License-Identifier: Apache-2.0
// An index that knows what it indexes: a NodeId cannot be passed where a ValueId is wanted.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace shoal {

// `Tag` is a name alone: Id<struct NodeTag>.
template <class Tag>
struct Id {
  std::uint32_t index = 0;  // among those of its kind, from 0
  friend auto operator<=>(Id, Id) = default;
};

}  // namespace shoal

// For unordered containers.
template <class Tag>
struct std::hash<shoal::Id<Tag>> {
  std::size_t operator()(shoal::Id<Tag> id) const noexcept { return id.index; }
};
