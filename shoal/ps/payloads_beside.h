// SPDX-License-Identifier: Apache-2.0
// Payloads between processes of one host: they lie in memory that both have, and the connection carries where.
//
//   client's segment   | requests: a ring, the oldest first | one answer |     opened by the server
//   connection         ── place, head ─►                 place 2^64 - 1: the payload follows
//                      ◄─ place, head ──
//
// The connection still says when something is there, and when the other end has gone. Who reads copies a payload before
// it looks at it: what the other end may still write to is nothing to be checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "shoal/comm/shm/segment.h"

namespace shoal::ps {

inline constexpr std::uint64_t kInStream = ~std::uint64_t{0};
// Of requests, and as many of an answer. Pages come with their first use.
inline constexpr std::size_t kAreaBytes = 8U << 20;
inline constexpr std::size_t kLeastBeside = 4U << 10;  // what is smaller goes faster with its head

inline bool goes_beside(std::size_t bytes) { return kLeastBeside <= bytes && bytes <= kAreaBytes; }

// Of a client's connection. One thread.
class PayloadsBeside {
 public:
  PayloadsBeside();
  // For the server, which is to open it.
  const comm::shm::SegmentId& id() const { return segment_.id(); }

  // The place of a request's payload, which is written there; none where it is to follow.
  std::optional<std::uint64_t> put(std::span<const std::byte> payload);
  // The oldest of those that were put has its answer.
  void take_back() { requests_.pop_front(); }
  // Borrowed until the next request goes out: only the last one's answer may be large. Throws Corrupt.
  std::span<const std::byte> answer(std::uint64_t place, std::size_t bytes) const;

 private:
  comm::shm::Mappings mappings_;
  const comm::shm::Segment segment_;
  std::deque<std::pair<std::size_t, std::size_t>> requests_;  // from, to
};

// The same of a server's connection.
class PayloadsOfClient {
 public:
  // Throws where that is no segment of a client on this host.
  PayloadsOfClient(comm::shm::Mappings& mappings, const comm::shm::SegmentId& id);
  // Throws Corrupt where a request has none there.
  void copy_request(std::uint64_t place, std::span<std::byte> to) const;
  // Its place.
  std::uint64_t put_answer(std::span<const std::byte> payload) const;

 private:
  std::shared_ptr<comm::shm::Mapping> mapping_;
};

}  // namespace shoal::ps
