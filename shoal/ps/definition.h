// SPDX-License-Identifier: Apache-2.0
// What a table is: what workers and servers have to agree on, and what is saved with its rows.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/dtype.h"
#include "shoal/ps/initial.h"
#include "shoal/ps/row_optimizer.h"

namespace shoal::ps {

// A stretch of a row with an optimizer of its own.
struct Part {
  std::uint32_t width = 0;  // values, 1 to 65,536
  RowOptimizer optimizer;   // what a gradient does to them
  Initial initial;          // what its values begin with
  // Bounds of its values, which a push does not leave.
  float lowest = -std::numeric_limits<float>::infinity();
  float highest = std::numeric_limits<float>::infinity();
  // The score at which it is made; until then it reads as zeros. 0: made with its row.
  float earned_at = 0;
  friend bool operator==(const Part&, const Part&) = default;
};

enum class AdmissionRule : std::uint8_t {
  Always,
  Count,        // at the threshold-th push of its key
  Probability,  // at each push with this probability
  Score,        // when the pushes of its key add up to this score, counted in 64ths
};

std::string_view name_of(AdmissionRule rule);                         // "always", "count", …
std::optional<AdmissionRule> parse_admission(std::string_view name);  // the inverse; none: there is no such

// When the key of a gradient gets a row.
struct Admission {
  AdmissionRule rule = AdmissionRule::Always;  // what a key has to do for it
  float threshold = 0;                         // pushes, a probability or a score, as the rule has it
  // How many rejected keys are remembered, at 4 bytes each; where there are more, those counted least are
  // forgotten. A full table of them takes one key in 65,000 for another.
  std::uint64_t candidates = 1 << 20;
  friend bool operator==(const Admission&, const Admission&) = default;
};

using SlotDays = std::vector<std::pair<std::uint32_t, std::uint32_t>>;  // slot and its days; slots ascend
std::string to_text(const SlotDays& days);                              // "3:7 12:30"
std::optional<SlotDays> parse_slot_days(std::string_view text);  // the inverse; none: it is something else

// When a row goes. Its score is show_weight·(shows − clicks) + click_weight·clicks; both decay at each
// shrink. Where any of this is to hold, the table is `scored`, at 12 bytes a row. A bound of 0 is none.
struct Life {
  float show_weight = 0.1f, click_weight = 1;
  float decay = 1;                            // what each shrink multiplies shows and clicks by
  float min_score = 0;                        // rows below it go
  std::uint32_t max_unseen_days = 0;          // rows go that were pushed longer ago
  std::uint64_t max_rows = 0, max_bytes = 0;  // those of the lowest score go; bytes: of rows
  // max_unseen_days of slots (fields of a sample) that have their own, up to 65,535; 0: their rows stay unseen.
  SlotDays slot_days = {};
  std::uint32_t slot_bits = 10;  // of a key's 63, the highest are its slot (data::KeyLayout)
  friend bool operator==(const Life&, const Life&) = default;
};

struct Definition {
  std::string name;        // of the table, among those of its servers
  std::uint64_t seed = 0;  // of what rows begin with, and of admission by probability
  // Of the values; or BFloat16, whose state is float32, or Float64, whose state and arithmetic are too.
  DType dtype = DType::Float32;
  std::uint32_t shards = 1024;  // a power of two; over all servers
  std::vector<Part> parts;      // of a row, in this order; 1 to 8
  Admission admission;          // when a key gets a row
  bool scored = false;          // whether rows have shows, clicks and a day
  Life life;                    // when a row goes
  friend bool operator==(const Definition&, const Definition&) = default;
};

// Throws InvalidInput that names the table and the field.
void check(const Definition& definition);

// Of a row as it is handed over.
std::size_t width_of(const Definition& definition);  // values of all parts
std::size_t row_bytes(const Definition& definition);

// A line "field = value" a field, and back; definition_from_text throws InvalidInput for what is not one.
std::string to_text(const Definition& definition);
Definition definition_from_text(std::string_view text);

// The first field that differs, with both values: "parts.0.width is 16, and 8 there"; "" where they are
// equal.
std::string difference(const Definition& here, const Definition& there);

}  // namespace shoal::ps
