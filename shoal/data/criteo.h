// SPDX-License-Identifier: Apache-2.0
// Lines of Criteo's display advertising data: tabs between a label (0 or 1), 13 integers and 26 ids of up to
// eight hexadecimal digits; integers and ids may be missing.
#pragma once

#include "shoal/data/line_parser.h"

namespace shoal::data {

// An integer x becomes log(1 + x); what is missing or negative becomes 0, as in DLRM. A missing id is an id
// of its own.
class CriteoParser final : public LineParser {
 public:
  static constexpr std::size_t kNumbers = 13, kSlots = 26;           // of a line
  static constexpr std::uint64_t kMissing = std::uint64_t{1} << 32;  // the id of one that is missing

  explicit CriteoParser(KeyLayout layout = {});  // throws InvalidInput when 26 slots do not go into it
  std::optional<Malformed> add(std::string_view line, SlotBatch& batch) const override;

 private:
  KeyLayout layout_;
  std::vector<float> logarithms_;  // of 1 + the smaller integers
};

}  // namespace shoal::data
