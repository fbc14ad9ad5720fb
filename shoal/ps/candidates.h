// SPDX-License-Identifier: Apache-2.0
// What keys without a row have gathered, four bytes each: 20 bits that tell them apart, 12 that count. The
// number of places is fixed, so keys that come once cost no more than these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shoal::ps {

// One thread at a time.
class Candidates {
 public:
  static constexpr std::uint32_t kMost = 4095;

  // For so many keys, and at least 16. Takes no memory before the first key.
  explicit Candidates(std::uint64_t keys)
      : num_buckets_(static_cast<std::uint32_t>((keys + kPlaces - 1) / kPlaces)) {}

  // What the key has with these; at most kMost. In a full bucket the key that has least makes room.
  std::uint32_t add(std::uint64_t hash, std::uint32_t points);
  void forget(std::uint64_t hash);

  // All of it, to be given to another one for as many keys. Throws Corrupt where it is not of that size.
  std::span<const std::byte> content() const { return std::as_bytes(std::span(buckets_)); }
  void take(std::span<const std::byte> content);

  std::size_t bytes() const { return buckets_.size() * sizeof(Bucket); }

 private:
  static constexpr std::size_t kPlaces = 16;
  struct alignas(64) Bucket {
    std::array<std::uint32_t, kPlaces> places = {};
  };

  std::uint32_t& place_of(std::uint64_t hash);

  std::uint32_t num_buckets_;
  std::vector<Bucket> buckets_;
};

}  // namespace shoal::ps
