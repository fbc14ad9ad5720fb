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

// What a file of /proc says of this process, in bytes; 0 where there is no such line.
static std::int64_t bytes_in(const char* file, std::string_view key) {
  std::ifstream lines(file);
  std::string word;
  std::int64_t kibibytes = 0;
  while (lines >> word)
    if (word == key && lines >> kibibytes) return kibibytes * 1024;
  return 0;
}

static constexpr const char* kOfAllPages = "/proc/self/smaps_rollup";

std::int64_t peak_memory_bytes() {
  const std::int64_t shared = bytes_in(kOfAllPages, "Rss:") - bytes_in(kOfAllPages, "Pss:");
  return bytes_in("/proc/self/status", "VmHWM:") - shared;
}

std::int64_t proportional_memory_bytes() { return bytes_in(kOfAllPages, "Pss:"); }

}  // namespace shoal::observe
