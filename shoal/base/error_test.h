// SPDX-License-Identifier: Apache-2.0
// For tests of what goes wrong.
#pragma once

#include <string>

#include "shoal/base/error.h"

namespace shoal {

// What the act throws says; empty if it throws nothing.
std::string error_of(const auto& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace shoal
