// SPDX-License-Identifier: Apache-2.0
// A store for ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <mutex>

#include "shoal/rendezvous/store.h"
#include "shoal/rendezvous/table.h"

namespace shoal::rendezvous {

// Throws what Store says.
class MemoryStore : public Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::nanoseconds limit) override;
  std::optional<std::string> find(std::string_view key) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_and_set(std::string_view key, std::string_view expected,
                              std::string_view desired) override;
  bool remove(std::string_view key) override;
  std::int64_t num_keys() override;

 private:
  std::mutex mutex_;  // guards table_
  std::condition_variable changed_;
  Table table_;
};

}  // namespace shoal::rendezvous
