// SPDX-License-Identifier: Apache-2.0
// shoal data: what to train on.
#pragma once

#include <cstdint>
#include <string>

#include "shoal/data/click_world.h"

namespace shoal::cli {

// As on the command line.
struct DataGenerate {
  std::string folder;
  std::int64_t samples = 1'000'000;  // a day
  int days = 1;
  int files = 1;    // a day
  int threads = 0;  // 0: one a core
  data::ClickWorldOptions world;
};

// Throws InvalidInput, with what is valid, where the options are not.
void check(const DataGenerate& options);
// Of checked options. Writes FOLDER/day_D_part_P.tsv, and prints what is in each day.
int data_generate(const DataGenerate& options);

}  // namespace shoal::cli
