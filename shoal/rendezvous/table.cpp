// SPDX-License-Identifier: Apache-2.0
#include "shoal/rendezvous/table.h"

#include <charconv>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::rendezvous {

void Table::set(std::string_view key, std::string_view value) {
  values_.insert_or_assign(std::string(key), std::string(value));
}

std::optional<std::string> Table::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::int64_t Table::add(std::string_view key, std::int64_t amount) {
  std::string& value = values_.try_emplace(std::string(key), "0").first->second;
  std::int64_t old = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), old);
  SHOAL_CHECK(error == std::errc() && end == value.data() + value.size(), InvalidInput, "rendezvous: key ",
              in_quotes(key), " holds ", in_quotes(value), ", which is not a counter; add to another key");
  value = std::to_string(old + amount);
  return old + amount;
}

std::string Table::compare_and_set(std::string_view key, std::string_view expected,
                                   std::string_view desired) {
  const auto found = values_.find(key);
  if (found == values_.end() ? expected.empty() : found->second == expected) {
    set(key, desired);
    return std::string(desired);
  }
  return found == values_.end() ? std::string() : found->second;
}

bool Table::remove(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  values_.erase(found);
  return true;
}

static void append(std::string& bytes, std::string_view text) {
  const std::uint64_t size = text.size();
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
}

static std::string taken(std::string_view& bytes) {
  std::uint64_t size = 0;
  SHOAL_CHECK(bytes.size() >= sizeof size, Corrupt, "rendezvous: the shared table is cut short");
  std::memcpy(&size, bytes.data(), sizeof size);
  bytes.remove_prefix(sizeof size);
  SHOAL_CHECK(bytes.size() >= size, Corrupt, "rendezvous: the shared table is cut short");
  std::string text(bytes.substr(0, size));
  bytes.remove_prefix(size);
  return text;
}

std::string Table::to_bytes() const {
  std::string bytes;
  for (const auto& [key, value] : values_) {
    append(bytes, key);
    append(bytes, value);
  }
  return bytes;
}

Table Table::from_bytes(std::string_view bytes) {
  Table table;
  while (!bytes.empty()) {
    std::string key = taken(bytes);
    table.values_.insert_or_assign(std::move(key), taken(bytes));
  }
  return table;
}

}  // namespace shoal::rendezvous
