// SPDX-License-Identifier: Apache-2.0
// shoal calibrate: what this machine does in a second, as a file for `shoal simulate`.
#pragma once

#include <string>

namespace shoal::cli {

// As on the command line.
struct Calibrate {
  std::string out;         // file
  int ranks = 1;           // that the host's cores are dealt out to
  std::string from_trace;  // simulated.json of a run with profiling.cluster; "": measure
};

// Throws InvalidInput where the options are not valid.
void check(const Calibrate& options);
// Of checked options. With several ranks starts them, all of which measure at once; of a run nothing is measured, and
// the cluster that it was held against is mended.
int calibrate(const Calibrate& options);

}  // namespace shoal::cli
