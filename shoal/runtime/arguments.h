// SPDX-License-Identifier: Apache-2.0
// Reading the arguments of Shoal's own ops, which have no schema in ATen.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/program/program.h"

namespace shoal::runtime {

// Each throws InvalidInput naming op and argument if it is missing or of another kind.
const ir::Attribute& argument_of(const program::Compute& compute, std::string_view name);
std::uint32_t slot_of(const program::Compute& compute, std::string_view name);
std::uint32_t optional_slot_of(const program::Compute& compute, std::string_view name);  // kNoSlot for none
std::vector<std::uint32_t> slots_of(const program::Compute& compute, std::string_view name);
std::vector<std::uint32_t> optional_slots_of(const program::Compute& compute, std::string_view name);
double number_of(const program::Compute& compute, std::string_view name);  // a double or an int
std::int64_t integer_of(const program::Compute& compute, std::string_view name);
const std::string& text_of(const program::Compute& compute, std::string_view name);
at::Device device_of(const program::Compute& compute);  // of the argument "device", a symbol: cpu, cuda:0
bool truth_of(const program::Compute& compute, std::string_view name);
bool has_argument(const program::Compute& compute, std::string_view name);
bool is_set(const program::Compute& compute, std::string_view name);  // false where it is left out

}  // namespace shoal::runtime
