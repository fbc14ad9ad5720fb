// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/candidates.h"

#include <algorithm>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/ps/hash.h"

namespace shoal::ps {

static constexpr int kCountBits = 12;
static constexpr std::uint32_t kCount = (1U << kCountBits) - 1;

// Bits of the hash that say neither shard nor bucket.
static std::uint32_t mark_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 20) & ~kCount; }

// The key's place; else a free one, else that of the key that has least, emptied.
std::uint32_t& Candidates::place_of(std::uint64_t hash) {
  if (buckets_.empty()) buckets_.resize(num_buckets_);
  auto& places = buckets_[scaled(hash, num_buckets_)].places;
  std::uint32_t* least = places.data();
  for (std::uint32_t& place : places) {
    if ((place & kCount) != 0 && (place & ~kCount) == mark_of(hash)) return place;
    if ((place & kCount) < (*least & kCount)) least = &place;
  }
  *least = mark_of(hash);
  return *least;
}

std::uint32_t Candidates::add(std::uint64_t hash, std::uint32_t points) {
  std::uint32_t& place = place_of(hash);
  const std::uint32_t count = std::min((place & kCount) + std::min(points, kMost), kMost);
  place = (place & ~kCount) | count;
  return count;
}

void Candidates::take(std::span<const std::byte> content) {
  SHOAL_CHECK(content.empty() || content.size() == num_buckets_ * sizeof(Bucket), Corrupt,
              "ps: candidates of ", content.size(), " bytes, wanted ", num_buckets_ * sizeof(Bucket));
  buckets_.resize(content.size() / sizeof(Bucket));
  if (!content.empty()) std::memcpy(buckets_.data(), content.data(), content.size());
}

void Candidates::forget(std::uint64_t hash) { place_of(hash) = 0; }

}  // namespace shoal::ps
