// SPDX-License-Identifier: Apache-2.0
// shoal ps size: the memory that tables of so many rows take, and servers that have it.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/ps/row_optimizer.h"

namespace shoal::cli {

struct PsSize {  // as on the command line
  std::string rows = "1G";
  std::uint32_t width = 16;
  std::string optimizer = "adagrad";
  std::string dtype = "float32";
  bool scored = false;
  std::uint32_t copies = 2;
  std::string server_memory = "64GiB";
};
void check(PsSize& options);
int ps_size(const PsSize& options);

}  // namespace shoal::cli
