// SPDX-License-Identifier: Apache-2.0
// No log of writes: after a crash the rows in memory are gone too. Bloom filters answer for keys that are
// new; cache, filters and what is being written share one bound, each store its own.
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/slice_transform.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/ps/cold_store.h"

namespace shoal::ps {

namespace {

// Big-endian, so that keys ascend as numbers do.
using Bytes = std::array<char, 8>;

Bytes bytes_of(std::uint64_t hash) {
  Bytes bytes;
  for (std::size_t i = 8; i-- > 0; hash >>= 8) bytes[i] = static_cast<char>(hash & 0xff);
  return bytes;
}

std::uint64_t hash_in(const rocksdb::Slice& slice) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < slice.size(); ++i) hash = (hash << 8) | static_cast<unsigned char>(slice[i]);
  return hash;
}

rocksdb::Slice slice_of(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }

class RocksDb final : public ColdDisk {
 public:
  explicit RocksDb(const std::filesystem::path& folder) : folder_(folder) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error))
      SHOAL_CHECK(std::filesystem::exists(folder_ / "IDENTITY"), InvalidInput, "ps: ", folder_.string(),
                  " is for cold rows and is emptied, but holds ", entry.path().filename().string(),
                  ", which is none; name another folder");
    if (const std::error_code made = make_folders(folder_))
      fail(ErrorKind::Infeasible, "ps: cannot make the folder ", folder_.string(), ": ", made.message());
    rocksdb::Options options;
    options.create_if_missing = true;
    options.max_open_files = 256;
    must(rocksdb::DestroyDB(folder_.string(), options), "emptied");
    rocksdb::DB* opened = nullptr;
    must(rocksdb::DB::Open(options, folder_.string(), &opened), "opened");
    db_.reset(opened);
  }
  ~RocksDb() override {
    db_.reset();
    rocksdb::DestroyDB(folder_.string(), {});  // or the next start does
  }
  RocksDb(const RocksDb&) = delete;
  RocksDb& operator=(const RocksDb&) = delete;

  std::unique_ptr<ColdStore> store(std::int64_t memory_bytes) override;
  rocksdb::DB& db() const { return *db_; }
  const std::filesystem::path& folder() const { return folder_; }
  std::uint64_t next() { return num_made_++; }
  void must(const rocksdb::Status& status, const char* what) const {
    if (status.ok()) return;
    fail(status.IsCorruption() ? ErrorKind::Corrupt : ErrorKind::Infeasible, "ps: cold rows in ",
         folder_.string(), " cannot be ", what, ": ", status.ToString());
  }

 private:
  std::filesystem::path folder_;
  std::unique_ptr<rocksdb::DB> db_;
  std::atomic<std::uint64_t> num_made_ = 0;
};

// A column family of it.
class Store final : public ColdStore {
 public:
  Store(RocksDb& all, std::int64_t memory_bytes) : all_(all), memory_bytes_(memory_bytes) {
    SHOAL_CHECK(memory_bytes >= ColdDisk::kLeastMemory, InvalidInput, "ps: RocksDB in ",
                all_.folder().string(), " got ", human_bytes(memory_bytes), " of memory; it wants ",
                human_bytes(ColdDisk::kLeastMemory), " or more");
    // Two buffers of an eighth each, and a cache.
    const auto buffer =
        std::clamp<std::size_t>(static_cast<std::size_t>(memory_bytes / 8), 1 << 20, 64 << 20);
    rocksdb::BlockBasedTableOptions blocks;
    blocks.block_cache = rocksdb::NewLRUCache(static_cast<std::size_t>(memory_bytes) - 2 * buffer);
    blocks.cache_index_and_filter_blocks = true;
    blocks.cache_index_and_filter_blocks_with_high_priority = true;
    blocks.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    blocks.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
    rocksdb::ColumnFamilyOptions options;
    options.compression = rocksdb::kNoCompression;
    options.write_buffer_size = buffer;
    options.max_write_buffer_number = 2;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(blocks));
    all_.must(all_.db().CreateColumnFamily(options, std::to_string(all_.next()), &family_), "made");
  }
  ~Store() override {
    all_.db().DropColumnFamily(family_);  // or the next start does
    all_.db().DestroyColumnFamilyHandle(family_);
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void read(std::span<const std::uint64_t> hashes, const Visit& visit) override {
    constexpr std::size_t kBlock = 256;
    std::array<Bytes, kBlock> keys;
    std::array<rocksdb::Slice, kBlock> slices;
    std::array<rocksdb::PinnableSlice, kBlock> found;
    std::array<rocksdb::Status, kBlock> results;
    for (std::size_t begin = 0; begin < hashes.size(); begin += kBlock) {
      const std::size_t count = std::min(kBlock, hashes.size() - begin);
      for (std::size_t i = 0; i < count; ++i) {
        keys[i] = bytes_of(hashes[begin + i]);
        slices[i] = slice_of(keys[i]);
        found[i].Reset();
      }
      all_.db().MultiGet({}, family_, count, slices.data(), found.data(), results.data(), true);
      for (std::size_t i = 0; i < count; ++i) {
        if (results[i].IsNotFound()) continue;
        all_.must(results[i], "read");
        visit(begin + i, {found[i].data(), found[i].size()});
      }
    }
  }

  void read_range(std::uint64_t first, std::uint64_t last, const Visit& visit) override {
    rocksdb::ReadOptions options;
    options.fill_cache = false;
    const std::unique_ptr<rocksdb::Iterator> at(all_.db().NewIterator(options, family_));
    const Bytes begin = bytes_of(first);
    std::size_t place = 0;
    for (at->Seek(slice_of(begin)); at->Valid() && hash_in(at->key()) <= last; at->Next())
      visit(place++, {at->value().data(), at->value().size()});
    all_.must(at->status(), "read");
  }

  void write(const Changes& changes) override {
    rocksdb::WriteBatch batch;
    for (const auto& [hash, record] : changes.written) {
      const Bytes key = bytes_of(hash);
      all_.must(batch.Put(family_, slice_of(key), record), "written");
    }
    for (const std::uint64_t hash : changes.removed) {
      const Bytes key = bytes_of(hash);
      all_.must(batch.Delete(family_, slice_of(key)), "written");
    }
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    all_.must(all_.db().Write(options, &batch), "written");
  }

  std::int64_t memory_bytes() const override { return memory_bytes_; }

 private:
  RocksDb& all_;
  rocksdb::ColumnFamilyHandle* family_ = nullptr;
  std::int64_t memory_bytes_;
};

std::unique_ptr<ColdStore> RocksDb::store(std::int64_t memory_bytes) {
  return std::make_unique<Store>(*this, memory_bytes);
}

}  // namespace

std::unique_ptr<ColdDisk> open_rocksdb(const std::filesystem::path& folder) {
  return std::make_unique<RocksDb>(folder);
}

}  // namespace shoal::ps
