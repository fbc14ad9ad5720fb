// SPDX-License-Identifier: Apache-2.0
// What a store holds, without its locks: the one place that says what each operation does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace shoal::rendezvous {

class Table {
 public:
  void set(std::string_view key, std::string_view value);
  std::optional<std::string> find(std::string_view key) const;
  std::int64_t add(std::string_view key, std::int64_t amount);
  std::string compare_and_set(std::string_view key, std::string_view expected, std::string_view desired);
  bool remove(std::string_view key);
  std::int64_t num_keys() const { return static_cast<std::int64_t>(values_.size()); }

  // For shared memory: length, key, length, value, …
  std::string to_bytes() const;
  static Table from_bytes(std::string_view bytes);

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace shoal::rendezvous
