// SPDX-License-Identifier: Apache-2.0
#include "shoal/rendezvous/memory_store.h"

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/rendezvous/deadline.h"

namespace shoal::rendezvous {

void MemoryStore::set(std::string_view key, std::string_view value) {
  {
    const std::lock_guard lock(mutex_);
    table_.set(key, value);
  }
  changed_.notify_all();
}

std::string MemoryStore::get(std::string_view key, std::chrono::nanoseconds limit) {
  const Clock::time_point deadline = deadline_after(limit);
  std::unique_lock lock(mutex_);
  std::optional<std::string> value;
  const bool there =
      changed_.wait_until(lock, deadline, [&] { return (value = table_.find(key)).has_value(); });
  SHOAL_CHECK(there, Timeout, "rendezvous: key ", in_quotes(key), " was not set within ",
              std::chrono::duration<double>(limit).count(), " s; has every rank started?");
  return *value;
}

std::optional<std::string> MemoryStore::find(std::string_view key) {
  const std::lock_guard lock(mutex_);
  return table_.find(key);
}

std::int64_t MemoryStore::add(std::string_view key, std::int64_t amount) {
  std::int64_t now = 0;
  {
    const std::lock_guard lock(mutex_);
    now = table_.add(key, amount);
  }
  changed_.notify_all();
  return now;
}

std::string MemoryStore::compare_and_set(std::string_view key, std::string_view expected,
                                         std::string_view desired) {
  std::string now;
  {
    const std::lock_guard lock(mutex_);
    now = table_.compare_and_set(key, expected, desired);
  }
  changed_.notify_all();
  return now;
}

bool MemoryStore::remove(std::string_view key) {
  const std::lock_guard lock(mutex_);
  return table_.remove(key);
}

std::int64_t MemoryStore::num_keys() {
  const std::lock_guard lock(mutex_);
  return table_.num_keys();
}

}  // namespace shoal::rendezvous
