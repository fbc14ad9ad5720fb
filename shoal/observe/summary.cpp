// SPDX-License-Identifier: Apache-2.0
#include "shoal/observe/summary.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "shoal/base/text.h"

namespace shoal::observe {

static std::string fixed(double number, int width, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%*.*f", width, digits, number);
  return text;
}

static std::string two_digits(std::int64_t number) {
  return (number < 10 ? "0" : "") + std::to_string(number);
}

std::string with_commas(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first_digit = number < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first_digit + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string human_seconds(double seconds) {
  const std::int64_t whole = std::llround(seconds);
  if (whole < 60) return std::to_string(whole) + "s";
  if (whole < 3600) return std::to_string(whole / 60) + "m" + two_digits(whole % 60) + "s";
  return std::to_string(whole / 3600) + "h" + two_digits(whole / 60 % 60) + "m";
}

std::string to_line(const StepSummary& summary) {
  std::string step = std::to_string(summary.step);
  if (step.size() < 2) step = " " + step;
  std::string line = "step: " + step + "  loss: " + fixed(summary.loss, 7, 4) +
                     "  grad_norm: " + fixed(summary.grad_norm, 7, 4) +
                     "  memory: " + human_bytes(summary.memory_bytes) +
                     "  tps: " + with_commas(std::llround(summary.tokens_per_second));
  if (summary.flops_per_second) {
    line += "  tflops: " + fixed(*summary.flops_per_second / 1e12, 0, 3);
    if (summary.peak_flops_per_second)
      line += "  mfu: " + fixed(100 * *summary.flops_per_second / *summary.peak_flops_per_second, 0, 2) + "%";
  }
  return line + "  left: " + human_seconds(summary.seconds_left);
}

// What is next said under that key in a file of /proc, in bytes; 0 where there is no such line.
static std::int64_t bytes_in(std::ifstream& lines, std::string_view key) {
  std::string word;
  std::int64_t kibibytes = 0;
  while (lines >> word)
    if (word == key && lines >> kibibytes) return kibibytes * 1024;
  return 0;
}

// The kernel looks at each page for this file.
MemoryNow memory_now() {
  std::ifstream lines("/proc/self/smaps_rollup");
  const std::int64_t resident = bytes_in(lines, "Rss:");
  const std::int64_t proportional = bytes_in(lines, "Pss:");
  return {.proportional = proportional, .of_others = resident - proportional};
}

std::int64_t peak_memory_bytes(std::int64_t of_others) {
  std::ifstream lines("/proc/self/status");
  return bytes_in(lines, "VmHWM:") - of_others;
}

}  // namespace shoal::observe
