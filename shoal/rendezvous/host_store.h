// SPDX-License-Identifier: Apache-2.0
// A store for processes of one host: shared memory without a name. The parent makes it, its children inherit
// the descriptor; it is gone when the last of them ends, however it ends.
//
//   HostStore store;                      // parent
//   fork();                               // a child goes on using `store`, and after exec
//   HostStore::inherited(descriptor)      // what it has inherited
//
// The table is written whole into the bank that is not in use, and then the banks change places: a process
// that is killed in the middle of a change leaves the table as it was.
#pragma once

#include "shoal/rendezvous/store.h"

namespace shoal::rendezvous {

class Table;

class HostStore : public Store {
 public:
  // `capacity` bytes for all keys and values; set() and add() throw Infeasible where they do not suffice, and
  // this where the system has none.
  explicit HostStore(std::int64_t capacity = std::int64_t{1} << 20);
  // The one behind a descriptor that was inherited; takes the descriptor over. Throws InvalidInput where it
  // is none.
  static HostStore inherited(int descriptor);
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;
  ~HostStore() override;

  // Closed on exec: who starts a program with it clears that in the child, between fork and exec.
  int descriptor() const { return descriptor_; }

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::nanoseconds limit) override;
  std::optional<std::string> find(std::string_view key) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_and_set(std::string_view key, std::string_view expected,
                              std::string_view desired) override;
  bool remove(std::string_view key) override;
  std::int64_t num_keys() override;

 private:
  struct Shared;  // what lies at the start of the memory
  class Lock;

  HostStore(int descriptor, std::int64_t capacity);
  void map();
  Table read() const;  // with the lock held, like the next
  void write(const Table& table);

  int descriptor_ = -1;
  std::int64_t capacity_ = 0;
  Shared* shared_ = nullptr;
};

}  // namespace shoal::rendezvous
