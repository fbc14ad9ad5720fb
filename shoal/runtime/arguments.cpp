// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/arguments.h"

#include <algorithm>

#include "shoal/base/error.h"
#include "shoal/runtime/typed_kernel.h"

namespace shoal::runtime {

using program::Compute;

const ir::Attribute& argument_of(const Compute& compute, std::string_view name) {
  for (const auto& argument : compute.arguments)
    if (argument.name == name) return argument.value;
  fail(ErrorKind::InvalidInput, compute.op, ": argument ", name, " is missing");
}

template <class T>
static const T& typed_argument(const Compute& compute, std::string_view name, std::string_view kind) {
  const auto* value = std::get_if<T>(&argument_of(compute, name));
  SHOAL_CHECK(value != nullptr, InvalidInput, compute.op, ": argument ", name, " is not ", kind);
  return *value;
}

std::uint32_t slot_of(const Compute& compute, std::string_view name) {
  return typed_argument<ir::ValueId>(compute, name, "a value").index;
}

std::uint32_t optional_slot_of(const Compute& compute, std::string_view name) {
  return std::holds_alternative<std::monostate>(argument_of(compute, name)) ? kNoSlot
                                                                            : slot_of(compute, name);
}

std::vector<std::uint32_t> optional_slots_of(const Compute& compute, std::string_view name) {
  std::vector<std::uint32_t> slots;
  for (const auto& value : typed_argument<ir::ValueList>(compute, name, "a list of values"))
    slots.push_back(value ? value->index : kNoSlot);
  return slots;
}

std::vector<std::uint32_t> slots_of(const Compute& compute, std::string_view name) {
  std::vector<std::uint32_t> slots = optional_slots_of(compute, name);
  SHOAL_CHECK(std::ranges::count(slots, kNoSlot) == 0, InvalidInput, compute.op, ": argument ", name,
              " has an item that is none");
  return slots;
}

double number_of(const Compute& compute, std::string_view name) {
  if (const auto* integer = std::get_if<std::int64_t>(&argument_of(compute, name)))
    return static_cast<double>(*integer);
  return typed_argument<double>(compute, name, "a number");
}

std::int64_t integer_of(const Compute& compute, std::string_view name) {
  return typed_argument<std::int64_t>(compute, name, "an integer");
}

const std::string& text_of(const Compute& compute, std::string_view name) {
  return typed_argument<std::string>(compute, name, "text");
}

at::Device device_of(const Compute& compute) {
  return at::Device(typed_argument<ir::Symbol>(compute, "device", "a device").name);
}

bool truth_of(const Compute& compute, std::string_view name) {
  return typed_argument<bool>(compute, name, "a bool");
}

bool has_argument(const Compute& compute, std::string_view name) {
  return std::ranges::find(compute.arguments, name, &ir::Argument::name) != compute.arguments.end();
}

bool is_set(const Compute& compute, std::string_view name) {
  return has_argument(compute, name) && truth_of(compute, name);
}

}  // namespace shoal::runtime
