// SPDX-License-Identifier: Apache-2.0
// Memory: a header with a robust process-shared mutex, a version that waiters sleep on (futex), and two
// banks.
#include "shoal/rendezvous/host_store.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/rendezvous/deadline.h"
#include "shoal/rendezvous/table.h"

namespace shoal::rendezvous {

struct HostStore::Shared {
  pthread_mutex_t mutex;
  std::atomic<std::uint32_t> version;  // grows with each change: the futex
  std::uint32_t bank;                  // which of the two holds the table
  std::uint64_t bytes[2];              // in use in each bank
};

static constexpr std::int64_t kHeaderBytes = 256;

// A lock whose owner was killed is taken over: the bank in use is whole.
class HostStore::Lock {
 public:
  explicit Lock(Shared* shared) : shared_(shared) {
    const int error = pthread_mutex_lock(&shared->mutex);
    if (error == EOWNERDEAD) pthread_mutex_consistent(&shared->mutex);
    SHOAL_CHECK(error == 0 || error == EOWNERDEAD, Internal,
                "rendezvous: cannot lock the host's store: ", std::strerror(error));
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { pthread_mutex_unlock(&shared_->mutex); }

 private:
  Shared* shared_;
};

HostStore::HostStore(std::int64_t capacity) : capacity_(capacity) {
  static_assert(sizeof(Shared) <= kHeaderBytes);
  descriptor_ = memfd_create("shoal-store", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  SHOAL_CHECK(descriptor_ >= 0, Infeasible, "rendezvous: cannot make shared memory: ", std::strerror(errno));
  const off_t bytes = kHeaderBytes + 2 * capacity;
  const bool sized = fchmod(descriptor_, 0600) == 0 && ftruncate(descriptor_, bytes) == 0;
  const int error = errno;
  if (!sized) close(descriptor_);
  SHOAL_CHECK(sized, Infeasible, "rendezvous: no shared memory for a store of ",
              human_bytes(static_cast<std::int64_t>(bytes)), ": ", std::strerror(error));
  fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  map();

  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&shared_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

HostStore::HostStore(int descriptor, std::int64_t capacity) : descriptor_(descriptor), capacity_(capacity) {
  map();
}

HostStore HostStore::inherited(int descriptor) {
  struct stat status = {};
  const bool known = fstat(descriptor, &status) == 0 && status.st_size > kHeaderBytes;
  SHOAL_CHECK(known, InvalidInput, "rendezvous: descriptor ", descriptor,
              " is not a store that was inherited; is it still open, and not closed on exec?");
  return {descriptor, (status.st_size - kHeaderBytes) / 2};
}

HostStore::~HostStore() {
  munmap(shared_, static_cast<std::size_t>(kHeaderBytes + 2 * capacity_));
  close(descriptor_);
}

void HostStore::map() {
  void* memory = mmap(nullptr, static_cast<std::size_t>(kHeaderBytes + 2 * capacity_), PROT_READ | PROT_WRITE,
                      MAP_SHARED, descriptor_, 0);
  const int error = errno;
  if (memory == MAP_FAILED) close(descriptor_);
  SHOAL_CHECK(memory != MAP_FAILED, Infeasible, "rendezvous: cannot map the store of ",
              human_bytes(2 * capacity_), ": ", std::strerror(error));
  shared_ = static_cast<Shared*>(memory);
}

Table HostStore::read() const {
  const char* bank = reinterpret_cast<const char*>(shared_) + kHeaderBytes + shared_->bank * capacity_;
  return Table::from_bytes({bank, shared_->bytes[shared_->bank]});
}

void HostStore::write(const Table& table) {
  const std::string bytes = table.to_bytes();
  SHOAL_CHECK(static_cast<std::int64_t>(bytes.size()) <= capacity_, Infeasible,
              "rendezvous: the store is full: ", bytes.size(), " bytes wanted, ", capacity_,
              " there are; remove keys, or make a larger store");
  const std::uint32_t other = 1 - shared_->bank;
  std::memcpy(reinterpret_cast<char*>(shared_) + kHeaderBytes + other * capacity_, bytes.data(),
              bytes.size());
  shared_->bytes[other] = bytes.size();
  std::atomic_ref(shared_->bank).store(other, std::memory_order_release);
  shared_->version.fetch_add(1);
  syscall(SYS_futex, &shared_->version, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void HostStore::set(std::string_view key, std::string_view value) {
  const Lock lock(shared_);
  Table table = read();
  table.set(key, value);
  write(table);
}

std::string HostStore::get(std::string_view key, std::chrono::nanoseconds limit) {
  const Clock::time_point deadline = deadline_after(limit);
  for (;;) {
    std::uint32_t version = 0;
    {
      const Lock lock(shared_);
      if (std::optional<std::string> value = read().find(key)) return *std::move(value);
      version = shared_->version.load();
    }
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
    SHOAL_CHECK(left.count() > 0, Timeout, "rendezvous: key ", in_quotes(key), " was not set within ",
                std::chrono::duration<double>(limit).count(), " s; has every rank started?");
    const timespec wait = {.tv_sec = left.count() / 1'000'000'000, .tv_nsec = left.count() % 1'000'000'000};
    syscall(SYS_futex, &shared_->version, FUTEX_WAIT, version, &wait, nullptr, 0);
  }
}

std::optional<std::string> HostStore::find(std::string_view key) {
  const Lock lock(shared_);
  return read().find(key);
}

std::int64_t HostStore::add(std::string_view key, std::int64_t amount) {
  const Lock lock(shared_);
  Table table = read();
  const std::int64_t now = table.add(key, amount);
  write(table);
  return now;
}

std::string HostStore::compare_and_set(std::string_view key, std::string_view expected,
                                       std::string_view desired) {
  const Lock lock(shared_);
  Table table = read();
  std::string now = table.compare_and_set(key, expected, desired);
  write(table);
  return now;
}

bool HostStore::remove(std::string_view key) {
  const Lock lock(shared_);
  Table table = read();
  const bool there = table.remove(key);
  if (there) write(table);
  return there;
}

std::int64_t HostStore::num_keys() {
  const Lock lock(shared_);
  return read().num_keys();
}

}  // namespace shoal::rendezvous
