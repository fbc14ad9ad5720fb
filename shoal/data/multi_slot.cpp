// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/multi_slot.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "shoal/base/error.h"

namespace shoal::data {

namespace {

// Words of a line, with one space before each but the first.
class Words {
 public:
  explicit Words(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {}

  bool at_end() const { return at_ == end_; }
  std::string_view rest() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }
  std::string_view word() const { return rest().substr(0, rest().find(' ')); }

  // False where the next word is none, or beyond 64 bits: nothing is read then.
  bool unsigned_number(std::uint64_t& number) {
    const char* at = at_;
    number = 0;
    for (; at != end_ && static_cast<unsigned char>(*at - '0') < 10; ++at)
      number = 10 * number + static_cast<unsigned char>(*at - '0');
    if (at - at_ > 19) {
      const auto [stop, error] = std::from_chars(at_, at, number);
      if (error != std::errc()) return false;
    }
    return at != at_ && leave(at);
  }
  bool real_number(float& number) {
    const auto [stop, error] = std::from_chars(at_, end_, number);
    return error == std::errc() && std::isfinite(number) && leave(stop);
  }
  void pass() { leave(at_ + word().size()); }

 private:
  bool leave(const char* stop) {
    if (stop != end_ && *stop != ' ') return false;
    at_ = stop == end_ ? stop : stop + 1;
    return true;
  }
  const char* at_;
  const char* end_;
};

}  // namespace

static std::string not_an_id(std::string_view word) {
  if (word.starts_with('-')) return shown(word) + " is negative; an id is 0 or more";
  return shown(word) + " is not an id";
}

MultiSlotParser::MultiSlotParser(std::vector<Slot> slots, KeyLayout layout)
    : slots_(std::move(slots)), numbers_(slots_.size()), layout_(layout) {
  SHOAL_CHECK(layout_.slot_bits >= 0 && layout_.slot_bits < 63, InvalidInput,
              "MultiSlot: slot_bits is 0 to 62, not ", layout_.slot_bits);
  const auto labels = std::ranges::count(slots_, SlotKind::Label, &Slot::kind);
  SHOAL_CHECK(labels == 1, InvalidInput, "MultiSlot: one slot is the label, not ", labels);
  std::uint64_t spaces = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto first = std::ranges::find(slots_, slots_[i].name, &Slot::name);
    SHOAL_CHECK(first == slots_.begin() + static_cast<std::ptrdiff_t>(i), InvalidInput,
                "MultiSlot: two slots have the name ", slots_[i].name);
    if (slots_[i].kind != SlotKind::Ids) continue;
    ++num_id_slots_;
    if (slots_[i].shares.empty()) {
      numbers_[i] = spaces++;
      continue;
    }
    const auto shared = std::ranges::find(slots_, slots_[i].shares, &Slot::name);
    const auto place = static_cast<std::size_t>(shared - slots_.begin());
    SHOAL_CHECK(place < i && shared->kind == SlotKind::Ids, InvalidInput, "MultiSlot: slot ", slots_[i].name,
                " shares the ids of ", slots_[i].shares, ", which is no slot of ids before it");
    numbers_[i] = numbers_[place];
  }
  SHOAL_CHECK(layout_.slot_bits == 0 || spaces <= std::uint64_t{1} << layout_.slot_bits, InvalidInput,
              "MultiSlot: ", spaces, " slots of ids do not go into slot_bits = ", layout_.slot_bits);
}

std::optional<Malformed> MultiSlotParser::add(std::string_view line, SlotBatch& batch) const {
  const std::size_t keys_before = batch.keys.size(), numbers_before = batch.numbers.size(),
                    offsets_before = batch.offsets.size();
  const auto refused = [&](const std::string& slot, const std::string& why) {
    batch.keys.resize(keys_before);
    batch.numbers.resize(numbers_before);
    batch.offsets.resize(offsets_before);
    return Malformed{slot, why};
  };
  const std::uint64_t limit = std::uint64_t{1} << layout_.id_bits();
  Words words(line);
  float label = 0;
  if (batch.offsets.empty()) batch.offsets.push_back(0);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (words.at_end()) return refused(slot.name, "the line ends before it");
    std::uint64_t count = 0;
    if (!words.unsigned_number(count))
      return refused(slot.name, shown(words.word()) + " is not a number of values");
    // Each value is a digit at least, and a space before all but the first.
    if (2 * std::min<std::uint64_t>(count, line.size()) > words.rest().size() + 1)
      return refused(slot.name, concat("the line ends before its ", count, " values"));
    const std::size_t width = slot.kind == SlotKind::Label ? 1 : slot.width;
    if ((slot.kind == SlotKind::Label || slot.kind == SlotKind::Numbers) && count != width)
      return refused(slot.name, concat("has ", count, " values, not ", width));
    for (std::uint64_t j = 0; j < count; ++j) {
      if (words.at_end()) return refused(slot.name, concat("has ", j, " values, not ", count));
      if (slot.kind == SlotKind::Ids) {
        std::uint64_t id = 0;
        if (!words.unsigned_number(id)) return refused(slot.name, not_an_id(words.word()));
        if (id >= limit)
          return refused(slot.name, concat(id, " is beyond ", layout_.id_bits(),
                                           " bits, which slot_bits = ", layout_.slot_bits, " leaves to ids"));
        batch.keys.push_back(layout_.key(numbers_[i], id));
      } else if (slot.kind == SlotKind::Ignored) {
        words.pass();
      } else {
        float number = 0;
        if (!words.real_number(number)) return refused(slot.name, shown(words.word()) + " is not a number");
        if (slot.kind == SlotKind::Label)
          label = number;
        else
          batch.numbers.push_back(number);
      }
    }
    if (slot.kind == SlotKind::Ids) batch.offsets.push_back(static_cast<std::int64_t>(batch.keys.size()));
  }
  if (!words.at_end()) return refused("line", shown(words.rest()) + " comes after the last slot");
  batch.labels.push_back(label);
  return std::nullopt;
}

}  // namespace shoal::data
