// SPDX-License-Identifier: Apache-2.0
// Samples of search and recommendation: a label, numbers, and for each slot some ids.
//
//   line     1 ⇥ 5 ⇥ ⇥ … ⇥ 68fd1e64 ⇥ 80e26c9b ⇥ …
//   label    1
//   numbers  log(1 + 5), 0, …
//   keys     slot 0 · 68fd1e64, slot 1 · 80e26c9b, …     one table holds all slots; no two ids share a row
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal::data {

// The slot's number above, the id below: 63 bits, so that keys are not negative as int64 either. With
// slot_bits = 0 ids are keys as they are.
struct KeyLayout {
  int slot_bits = 10;  // 0 to 62

  int id_bits() const { return 63 - slot_bits; }                   // what is left of a key
  std::uint64_t key(std::uint64_t slot, std::uint64_t id) const {  // slot < 2^slot_bits, id < 2^id_bits
    return slot_bits == 0 ? id : (slot << id_bits()) | id;
  }
};

struct SlotBatch {                    // samples, one after the other
  std::vector<float> labels;          // one a sample
  std::vector<float> numbers;         // as many for each sample, one sample after the other
  std::vector<std::uint64_t> keys;    // sample by sample, in each slot by slot
  std::vector<std::int64_t> offsets;  // where each slot of each sample begins in `keys`, and the end: what
                                      // EmbeddingBag takes; none where every slot has one key

  std::size_t size() const { return labels.size(); }  // samples
  // No samples; memory stays.
  void clear() {
    labels.clear();
    numbers.clear();
    keys.clear();
    offsets.clear();
  }
  friend bool operator==(const SlotBatch&, const SlotBatch&) = default;
};

}  // namespace shoal::data
