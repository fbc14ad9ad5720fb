// SPDX-License-Identifier: Apache-2.0
// Pushes of one table added up, key by key, in the order in which they come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shoal/ps/places.h"
#include "shoal/ps/table.h"

namespace shoal::ps {

class RowSums {
 public:
  // `width`: of a row. All are of gradients, or all of differences.
  void add(const Push& push, std::size_t width);
  // One push of all of them, borrowed. What it has beside rows is that of the last one.
  Push push() const;
  void clear();

 private:
  template <class T>
  void add_as(const Push& push, std::size_t width);

  Places places_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::byte> gradients_;
  std::vector<float> shows_, clicks_;
  bool is_wide_ = false, has_usage_ = false;
  Push last_;
};

}  // namespace shoal::ps
