// SPDX-License-Identifier: Apache-2.0
// A step in one line, in torchtitan's words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shoal::observe {

struct StepSummary {
  std::int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  std::int64_t memory_bytes = 0;
  double tokens_per_second = 0;
  std::optional<double> flops_per_second;  // of the model: what its definition needs, recompute not counted
  std::optional<double> peak_flops_per_second;
  double seconds_left = 0;
};

// "step: 10  loss:  4.3100  grad_norm:  1.2000  memory: 1.1GiB  tps: 5,120  tflops: 0.05  mfu: 41.00%  left:
// 3m20s"; tflops and mfu (tflops of the peak) stand there only when they are known.
std::string to_line(const StepSummary& summary);

std::string human_seconds(double seconds);     // "8s", "3m20s", "2h05m"
std::string with_commas(std::int64_t number);  // "1,234,567"

// Of this process, now. 0 where the system does not say it. Takes milliseconds where there is much.
struct MemoryNow {
  std::int64_t proportional = 0;  // bytes, where pages that others have too count in parts
  std::int64_t of_others = 0;     // what those parts leave of all that it has
};
MemoryNow memory_now();

// The most memory this process has held, less what others have of it (MemoryNow::of_others): that of all ranks of a
// host is what they take together. Takes microseconds.
std::int64_t peak_memory_bytes(std::int64_t of_others);

}  // namespace shoal::observe
