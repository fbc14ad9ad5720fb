// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/payloads_beside.h"

#include <cstring>

#include "shoal/base/error.h"

namespace shoal::ps {

PayloadsBeside::PayloadsBeside() : segment_("shoal-payloads", 2 * kAreaBytes, mappings_) {}

// Behind the newest, or at the begin where the oldest leaves room.
std::optional<std::uint64_t> PayloadsBeside::put(std::span<const std::byte> payload) {
  if (!goes_beside(payload.size())) return std::nullopt;
  std::size_t from = 0;
  if (!requests_.empty()) {
    const std::size_t oldest = requests_.front().first, end = requests_.back().second;
    const bool is_round = requests_.back().first < oldest;
    const std::size_t most = is_round ? oldest : kAreaBytes;
    from = end;
    if (most - end < payload.size()) {
      if (is_round || oldest < payload.size()) return std::nullopt;
      from = 0;
    }
  }
  std::memcpy(segment_.data() + from, payload.data(), payload.size());
  requests_.emplace_back(from, from + payload.size());
  return from;
}

std::span<const std::byte> PayloadsBeside::answer(std::uint64_t place, std::size_t bytes) const {
  SHOAL_CHECK(place == kAreaBytes && bytes <= kAreaBytes, Corrupt, "ps: a server's answer has ", bytes,
              " bytes at ", place, " of the memory that is shared with it, where there are none");
  return {segment_.data() + place, bytes};
}

PayloadsOfClient::PayloadsOfClient(comm::shm::Mappings& mappings, const comm::shm::SegmentId& id) {
  SHOAL_CHECK(id.bytes == 2 * kAreaBytes, Corrupt, "ps: a client shares ", id.bytes, " bytes, wanted ",
              2 * kAreaBytes);
  mapping_ = mappings.of(id);
}

void PayloadsOfClient::copy_request(std::uint64_t place, std::span<std::byte> to) const {
  SHOAL_CHECK(place <= kAreaBytes && to.size() <= kAreaBytes - place, Corrupt, "ps: a request has ",
              to.size(), " bytes at ", place, " of the memory that is shared with it, where there are none");
  std::memcpy(to.data(), mapping_->data() + place, to.size());
}

std::uint64_t PayloadsOfClient::put_answer(std::span<const std::byte> payload) const {
  std::memcpy(mapping_->data() + kAreaBytes, payload.data(), payload.size());
  return kAreaBytes;
}

}  // namespace shoal::ps
