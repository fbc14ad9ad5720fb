// SPDX-License-Identifier: Apache-2.0
// Shared memory without a name: a memfd, which peers of the same user open through /proc/PID/fd. It is in no
// folder, so that no limit of a container's /dev/shm applies, and it is gone when the last process that has
// it ends, however it ends.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace shoal::comm::shm {

// Where a peer finds a segment: put into shared memory as it is. The inode tells whether the descriptor still
// is what it was.
struct SegmentId {
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::uint64_t inode = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const SegmentId&, const SegmentId&) = default;
};

// Pages of a segment in this process.
class Mapping {
 public:
  Mapping(int descriptor, std::int64_t bytes);
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// The segments that a process has mapped, each once. Ranks that are threads may share one; then they see each
// other's memory at the same addresses. Any thread.
class Mappings {
 public:
  // Throws PeerLost where the segment is gone, Corrupt where it has not the bytes that its id says.
  std::shared_ptr<Mapping> of(const SegmentId& id);

 private:
  std::mutex mutex_;                                      // guards open_
  std::map<std::uint64_t, std::weak_ptr<Mapping>> open_;  // by inode
};

// Throws Infeasible where the machine or the container has not that much memory left. Shared memory without a
// name has no other bound: past this one a process is killed.
void check_available(std::int64_t bytes);

// A segment of this process: zeros, of this user alone (mode 0600), never smaller than it was made. Pages are
// taken from the machine when they are first used, or by `commit`.
class Segment {
 public:
  Segment(const std::string& name, std::int64_t bytes, Mappings& mappings);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();
  const SegmentId& id() const { return id_; }
  std::byte* data() const { return mapping_->data(); }
  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }

  // Takes the pages of this range from the machine, so that it fails here (Infeasible, with the size wanted)
  // and not by a signal when they are touched.
  void commit(std::int64_t offset, std::int64_t bytes) const;
  // Gives them back; they read as zeros then.
  void discard(std::int64_t offset, std::int64_t bytes) const noexcept;

 private:
  SegmentId id_;
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace shoal::comm::shm
