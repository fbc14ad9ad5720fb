// SPDX-License-Identifier: Apache-2.0
// shoal bench ps: rows a second that a core of a parameter server finds and trains.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::cli {

// As on the command line.
struct BenchPs {
  std::string op = "pull,push";
  std::string transport = "memory";
  std::string rows = "10M";
  std::uint32_t dim = 16;
  std::int64_t batch = 4096;
  std::string format = "text";
  int repeats = 5;
  std::uint32_t parts = 1;  // of the keys, of a server; more than one by a map
};

// Throws InvalidInput, with what is valid, where the options are not.
void check(const BenchPs& options);
// Of checked options.
int bench_ps(const BenchPs& options);

}  // namespace shoal::cli
