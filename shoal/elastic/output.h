// SPDX-License-Identifier: Apache-2.0
// What a rank prints: cut into lines, each with the rank before it, and the last ones kept.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

namespace shoal::elastic {

class Lines {
 public:
  explicit Lines(std::string prefix, std::size_t most_kept = 20)
      : prefix_(std::move(prefix)), most_kept_(most_kept) {}

  // Gives what is to be printed: whole lines. A line longer than 64 KiB is cut.
  std::string take(std::string_view bytes);
  // The line without an end, when the rank has ended.
  std::string rest();
  const std::deque<std::string>& last() const { return last_; }  // without prefixes

 private:
  std::string line(std::string_view text);

  std::string prefix_;
  std::size_t most_kept_;
  std::string open_;
  std::deque<std::string> last_;
};

// Writes all of it, or what the reader takes within some seconds: one that has stopped does not stop a job.
void print(int descriptor, std::string_view text) noexcept;

}  // namespace shoal::elastic
