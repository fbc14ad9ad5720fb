// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/error.h"
#include "shoal/ps/cold_store.h"

namespace shoal::ps {

std::unique_ptr<ColdDisk> open_rocksdb(const std::filesystem::path& folder) {
  fail(ErrorKind::InvalidInput, "ps: ", folder.string(),
       ": this Shoal was built without RocksDB, so that rows cannot lie on disk; install librocksdb-dev and "
       "build "
       "again");
}

}  // namespace shoal::ps
