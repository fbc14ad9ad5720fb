// SPDX-License-Identifier: Apache-2.0
// Which parameters' rows are in tables, as a plan says it.
#pragma once

#include <string>

namespace shoal::rewrite {

struct TableSpec {
  std::string parameters;  // by name; in a plan '*' stands for any characters but '.'
  std::string clicks =
      {};  // the input that has of each sample how often it was clicked; none: nobody counts that
  friend bool operator==(const TableSpec&, const TableSpec&) = default;
};

}  // namespace shoal::rewrite
