// SPDX-License-Identifier: Apache-2.0
// Numbers of the command line.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::cli {

// "10M" is ten million. Throws InvalidInput naming the option where it is no whole number from 1 to `most`, with K, M,
// G or T for thousands and so on or without.
std::uint64_t count_in(const std::string& option, const std::string& text, const std::string& most);

}  // namespace shoal::cli
