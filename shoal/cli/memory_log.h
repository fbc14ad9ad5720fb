// SPDX-License-Identifier: Apache-2.0
// What a run has had in memory, by what it was at: live bytes in c10's allocator and the communicator's
// memory. Files that are mapped are not among it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::cli {

class MemoryLog {
 public:
  struct Phase {
    std::string name;
    std::int64_t peak = 0;  // the most at once, in all times that it came
  };

  MemoryLog();  // tensors are counted from here
  // What was since the last end was this. Returns its most, in all times that it came.
  std::int64_t end(const std::string& phase);
  const std::vector<Phase>& phases() const { return phases_; }
  const Phase& largest() const;
  // Looks at all pages of the process, which takes milliseconds where there are many.
  void look();
  // The proportional set size, of those times and those at which it was looked at, above that at the start.
  std::int64_t proportional() const { return proportional_ - proportional_before_; }
  // The most that the process has held; pages that others have too count in parts, as at the last look.
  std::int64_t of_process() const;

 private:
  std::vector<Phase> phases_;
  std::int64_t proportional_before_ = 0, proportional_ = 0, of_others_ = 0;
};

}  // namespace shoal::cli
