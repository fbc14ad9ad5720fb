// SPDX-License-Identifier: Apache-2.0
// shoal simulate: what a pipeline schedule alone comes to.
#pragma once

#include <string>

namespace shoal::cli {

// As on the command line.
struct Simulate {
  std::string schedule;     // "": not said, 1f1b
  std::string csv;          // file to read instead; "": none
  int stages = 0;           // 0: not said
  int stages_per_rank = 0;  // likewise
  int microbatches = 0;     // likewise
  std::string times = "1,1,1,0";
  std::string save, timeline;  // files to write; "": none
};

// Throws InvalidInput, with what is valid, where the options are not.
void check(const Simulate& options);
// Of checked options.
int simulate(const Simulate& options);

}  // namespace shoal::cli
