// SPDX-License-Identifier: Apache-2.0
// What ranks make sure of before they go on. All of a group call each of these at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shoal/runtime/groups.h"

namespace shoal::train {

std::int64_t hash_of(const std::string& text);

// Throws InvalidInput on all ranks where they have different texts, with the first line that differs. `what`:
// for the message.
void check_same(const runtime::Group& group, const std::string& what, const std::string& text);
// Every rank does it; where it throws on any of them, all of them throw what the first of these did.
void together(const runtime::Group& group, const std::function<void()>& act);

// What the first of them makes, on all.
std::string from_first(const runtime::Group& group, const std::function<std::string()>& make);

// Whether it is so on all ranks.
bool on_all(const runtime::Group& group, bool is_so);

}  // namespace shoal::train
