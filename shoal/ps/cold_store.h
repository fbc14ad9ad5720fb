// SPDX-License-Identifier: Apache-2.0
// Where rows lie that memory has no room for: records by the hash of their key, in its order. What is there
// belongs to the process that wrote it; what outlives it is a save.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::ps {

class ColdStore {
 public:
  struct Changes {                                               // by hash
    std::vector<std::pair<std::uint64_t, std::string>> written;  // records, new or in place of others
    std::vector<std::uint64_t> removed;                          // may be absent
  };
  // A record, borrowed for the call.
  using Visit = std::function<void(std::size_t place, std::string_view record)>;

  virtual ~ColdStore() = default;
  // Visits those of `hashes`, which ascend, that are there. Any thread; throws Corrupt for a damaged record.
  virtual void read(std::span<const std::uint64_t> hashes, const Visit& visit) = 0;
  // All records from `first` to `last`, in ascending order; place counts them.
  virtual void read_range(std::uint64_t first, std::uint64_t last, const Visit& visit) = 0;
  // All or none. Any thread; throws Infeasible naming path and reason where the disk takes no more.
  virtual void write(const Changes& changes) = 0;
  virtual std::int64_t memory_bytes() const = 0;  // at most
};

// A folder of this process alone, in which stores lie, which it outlives.
class ColdDisk {
 public:
  static constexpr std::int64_t kLeastMemory = 8 << 20;  // of a store
  virtual ~ColdDisk() = default;
  // A store without records, whose caches and buffers take so much of memory at most; its records go with it. Any
  // thread. Throws InvalidInput for too little memory, Infeasible naming path and reason where the disk takes no more.
  virtual std::unique_ptr<ColdStore> store(std::int64_t memory_bytes) = 0;
};

// RocksDB in a folder, which is emptied first and at the end, and must be of no other process. Throws InvalidInput for
// a folder that holds anything else, or where Shoal was built without RocksDB.
std::unique_ptr<ColdDisk> open_rocksdb(const std::filesystem::path& folder);

// A table's: rows, index and `store` together keep within `memory_bytes`. Of `shares` tables that its shards
// are spread over this is one.
struct Cold {
  std::unique_ptr<ColdStore> store = nullptr;
  std::int64_t memory_bytes = 0;
  std::uint32_t shares = 1;
};

struct ColdOptions {  // of tables that are made one by one, each in parts
  // Of a table, all its parts together; a quarter, and ColdDisk::kLeastMemory of a part at least, is the disk's. 0: any.
  std::int64_t memory_bytes = 0;
  std::filesystem::path folder = {};  // as open_rocksdb has it
};

// Outlives the tables.
class ColdTier {
 public:
  explicit ColdTier(const ColdOptions& options);  // throws as open_rocksdb
  // For one of so many parts of a table. Any thread.
  Cold of_part(std::uint32_t parts) const;

 private:
  std::int64_t memory_bytes_;
  std::unique_ptr<ColdDisk> disk_;
};

}  // namespace shoal::ps
