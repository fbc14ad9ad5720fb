// SPDX-License-Identifier: Apache-2.0
// What a line of a text file says: one sample.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shoal/data/slot_batch.h"

namespace shoal::data {

struct Malformed {   // what is wrong with a line
  std::string slot;  // or the column
  std::string why;   // with what stands there
};

// Several threads may use one.
class LineParser {
 public:
  virtual ~LineParser() = default;
  // Adds the line's sample to the batch; or says what is wrong with the line, and adds nothing. The line
  // comes without its end.
  virtual std::optional<Malformed> add(std::string_view line, SlotBatch& batch) const = 0;
};

// The line's first characters in quotes, for a message.
std::string shown(std::string_view text);

}  // namespace shoal::data
