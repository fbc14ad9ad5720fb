// SPDX-License-Identifier: Apache-2.0
// MultiSlot lines, as PaddlePaddle's: for each slot, in the schema's order, how many values and the values,
// with one space between: "1 1 2 17 4 3 0.5 0.25 1".
#pragma once

#include <string>
#include <vector>

#include "shoal/data/line_parser.h"

namespace shoal::data {

enum class SlotKind : std::uint8_t {
  Label,    // one number
  Numbers,  // exactly `width` of them
  Ids,      // any number, also none
  Ignored,  // is there and passed over
};

struct Slot {                     // of the schema
  std::string name;               // for messages
  SlotKind kind = SlotKind::Ids;  // what its values are
  std::size_t width = 1;          // of Numbers
  std::string shares = {};        // the slot, further up, whose ids these are too
};

// Parses lines of one schema.
class MultiSlotParser final : public LineParser {
 public:
  // Throws InvalidInput when there is not one label, two slots have one name, `shares` names no slot of ids
  // further up, or there are more of these than the layout has room for.
  explicit MultiSlotParser(std::vector<Slot> slots, KeyLayout layout = {});
  std::optional<Malformed> add(std::string_view line, SlotBatch& batch) const override;
  std::size_t num_id_slots() const { return num_id_slots_; }  // slots of ids in a sample

 private:
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> numbers_;  // of each slot of ids: what stands above its ids
  KeyLayout layout_;
  std::size_t num_id_slots_ = 0;
};

}  // namespace shoal::data
