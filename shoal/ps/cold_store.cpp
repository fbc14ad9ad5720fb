// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/cold_store.h"

#include <algorithm>

namespace shoal::ps {

ColdTier::ColdTier(const ColdOptions& options)
    : memory_bytes_(options.memory_bytes),
      disk_(memory_bytes_ > 0 ? open_rocksdb(options.folder) : nullptr) {}

Cold ColdTier::of_part(std::uint32_t parts) const {
  if (!disk_) return {};
  const std::int64_t share = memory_bytes_ / parts;
  return {.store = disk_->store(std::max(share / 4, ColdDisk::kLeastMemory)),
          .memory_bytes = share,
          .shares = parts};
}

}  // namespace shoal::ps
