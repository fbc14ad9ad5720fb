// SPDX-License-Identifier: Apache-2.0
// What a measurement of this machine is good for.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::cli {

// "AMD EPYC 7B13, 2 cores, AVX2": what kernels are chosen by.
std::string machine();

std::int64_t total_memory_bytes();

}  // namespace shoal::cli
