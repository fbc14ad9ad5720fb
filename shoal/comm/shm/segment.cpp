// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::comm::shm {

Mapping::Mapping(int descriptor, std::int64_t bytes) : bytes_(bytes) {
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  SHOAL_CHECK(memory != MAP_FAILED, Infeasible, "shm: cannot map ", human_bytes(bytes), ": ",
              std::strerror(errno));
  data_ = static_cast<std::byte*>(memory);
}

Mapping::~Mapping() { munmap(data_, static_cast<std::size_t>(bytes_)); }

static std::uint64_t inode_of(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

// So that no page of it can go while it is mapped.
static bool has_for_good(int descriptor, std::int64_t bytes) {
  struct stat status = {};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return bytes > 0 && fstat(descriptor, &status) == 0 && status.st_size == bytes && seals >= 0 &&
         (seals & F_SEAL_SHRINK) != 0;
}

std::shared_ptr<Mapping> Mappings::of(const SegmentId& id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(open_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<Mapping>& open = open_[id.inode];
  if (std::shared_ptr<Mapping> mapping = open.lock()) return mapping;
  const std::string path = concat("/proc/", id.pid, "/fd/", id.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const int error = errno;
  const bool same = descriptor >= 0 && inode_of(descriptor) == id.inode;
  std::shared_ptr<Mapping> mapping;
  const bool whole = same && has_for_good(descriptor, id.bytes);
  if (whole) mapping = std::make_shared<Mapping>(descriptor, id.bytes);
  if (descriptor >= 0) close(descriptor);
  SHOAL_CHECK(same, PeerLost, "shm: shared memory of process ", id.pid, " is gone (",
              descriptor < 0 ? std::strerror(error) : "another file",
              "); it has ended, or is another user's");
  SHOAL_CHECK(whole, Corrupt, "shm: process ", id.pid, " says that its descriptor ", id.descriptor, " is ",
              id.bytes, " bytes of shared memory, which it is not");
  open = mapping;
  return mapping;
}

Segment::Segment(const std::string& name, std::int64_t bytes, Mappings& mappings) {
  const int descriptor = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  SHOAL_CHECK(descriptor >= 0, Infeasible, "shm: cannot make shared memory: ", std::strerror(errno));
  id_ = {.pid = getpid(), .descriptor = descriptor, .inode = inode_of(descriptor), .bytes = bytes};
  const bool sized = fchmod(descriptor, 0600) == 0 && ftruncate(descriptor, bytes) == 0;
  const int error = errno;
  fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  try {
    SHOAL_CHECK(sized, Infeasible, "shm: ", human_bytes(bytes),
                " of shared memory wanted: ", std::strerror(error));
    mapping_ = mappings.of(id_);
  } catch (...) {
    close(descriptor);
    throw;
  }
}

Segment::~Segment() { close(id_.descriptor); }

// The number after a word of a file, or, without a word, at its start; none where it is not there.
static std::optional<std::int64_t> number_in(const char* path, const std::string& word) {
  std::ifstream file(path);
  std::string read;
  while (!word.empty() && read != word)
    if (!(file >> read)) return std::nullopt;
  std::int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// Of the machine, and of the container.
static std::int64_t available_bytes() {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  if (const auto kibibytes = number_in("/proc/meminfo", "MemAvailable:")) bytes = *kibibytes * 1024;
  const auto most = number_in("/sys/fs/cgroup/memory.max", ""),
             used = number_in("/sys/fs/cgroup/memory.current", "");
  return most && used ? std::min(bytes, *most - *used) : bytes;
}

void check_available(std::int64_t bytes) {
  const std::int64_t available = available_bytes();
  SHOAL_CHECK(bytes <= available, Infeasible, "shm: ", human_bytes(bytes), " of shared memory wanted, ",
              human_bytes(available), " available; make buffers smaller, or run fewer ranks on this host");
}

void Segment::commit(std::int64_t offset, std::int64_t bytes) const {
  int error = 0;
  do {
    error = fallocate(id_.descriptor, 0, offset, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  SHOAL_CHECK(error == 0, Infeasible, "shm: ", human_bytes(bytes),
              " of shared memory wanted: ", std::strerror(error),
              "; make buffers smaller, or run fewer ranks on this host");
}

void Segment::discard(std::int64_t offset, std::int64_t bytes) const noexcept {
  if (bytes > 0) fallocate(id_.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

}  // namespace shoal::comm::shm
