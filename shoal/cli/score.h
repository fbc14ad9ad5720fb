// SPDX-License-Identifier: Apache-2.0
// shoal ps score FOLDER SAMPLES...: a probability a line, of what shoal ps export has written.
#pragma once

#include <string>
#include <vector>

namespace shoal::cli {

struct PsScore {
  std::string folder;
  std::vector<std::string> samples;  // files of Criteo's form
};
void check(PsScore& options);
int ps_score(const PsScore& options);  // and how good they are, on standard error

}  // namespace shoal::cli
