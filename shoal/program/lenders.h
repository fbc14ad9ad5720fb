// SPDX-License-Identifier: Apache-2.0
// Which inputs of an op may lend their memory to what it makes, where they die there.
#pragma once

#include <array>
#include <string_view>

namespace shoal::program {

// Names of arguments; none for an op that is not known to read elementwise.
std::array<std::string_view, 2> lenders_of(std::string_view op);

}  // namespace shoal::program
