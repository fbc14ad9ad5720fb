// SPDX-License-Identifier: Apache-2.0
// Eight digits are looked at as one word; what is not eight digits and a tab takes the slow way.
#include "shoal/data/criteo.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::data {

static constexpr std::uint64_t kEach = 0x0101010101010101u;
static constexpr std::size_t kColumns = 1 + CriteoParser::kNumbers + CriteoParser::kSlots;

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 24;
  return in_quotes(text.substr(0, kMost)) + (text.size() > kMost ? "…" : "");
}

// Of eight characters; false where one is no lower-case digit. A letter has bit 6, and its low half is 9 less
// than what it stands for.
static bool parse_eight(const char* text, std::uint64_t& number) {
  std::uint64_t word;
  std::memcpy(&word, text, sizeof word);
  word = __builtin_bswap64(word);
  const std::uint64_t letters = (word >> 6) & kEach;
  const std::uint64_t values = (word & (kEach * 0x0f)) + letters * 9;
  const bool is_valid = (word & (kEach * 0xf0)) == kEach * 0x30 + letters * 0x30 &&
                        (values & (kEach * 0xf0)) == 0 && (((values + kEach * 6) >> 4) & kEach) == letters;
  number = (values | (values >> 4)) & 0x00ff00ff00ff00ffu;
  number = (number | (number >> 8)) & 0x0000ffff0000ffffu;
  number = (number | (number >> 16)) & 0xffffffffu;
  return is_valid;
}

static std::string_view field_at(const char* at, const char* end) {
  const void* tab = std::memchr(at, '\t', static_cast<std::size_t>(end - at));
  return {at, static_cast<std::size_t>((tab == nullptr ? end : static_cast<const char*>(tab)) - at)};
}

CriteoParser::CriteoParser(KeyLayout layout) : layout_(layout), logarithms_(4096) {
  SHOAL_CHECK(layout_.slot_bits >= 5 && layout_.id_bits() > 32, InvalidInput,
              "Criteo's 26 slots with ids of 32 bits want slot_bits from 5 to 30, not ", layout_.slot_bits);
  for (std::size_t i = 0; i < logarithms_.size(); ++i)
    logarithms_[i] = static_cast<float>(std::log1p(static_cast<double>(i)));
}

std::optional<Malformed> CriteoParser::add(std::string_view line, SlotBatch& batch) const {
  const char* const first = line.data();
  const char* const end = first + line.size();
  const char* at = first;
  std::array<float, kNumbers> numbers;
  std::array<std::uint64_t, kSlots> keys;
  std::size_t column = 0;
  // Past the tab, or to the end of the last column.
  const auto leave_column = [&] {
    ++column;
    if (column == kColumns) return at == end;
    if (at == end) return false;
    return *at++ == '\t';
  };
  const auto wrong_count = [&] {
    std::size_t tabs = 0;
    for (const char c : line) tabs += c == '\t';
    return Malformed{"line", concat("has ", line.empty() ? 0 : tabs + 1, " columns, not ", kColumns)};
  };

  if (at == end) return wrong_count();
  const float label = *at == '1' ? 1.0f : 0.0f;
  if (*at != '0' && *at != '1') return Malformed{"label", shown(field_at(at, end)) + " is not 0 or 1"};
  ++at;
  if (!leave_column()) {
    if (at == end) return wrong_count();
    return Malformed{"label", shown(field_at(first, end)) + " is not 0 or 1"};
  }

  for (std::size_t i = 0; i < kNumbers; ++i) {
    const char* const begin = at;
    const bool is_negative = at != end && *at == '-';
    at += is_negative;
    std::uint64_t number = 0;
    const char* const digits = at;
    for (; at != end && static_cast<unsigned char>(*at - '0') < 10; ++at)
      number = 10 * number + static_cast<unsigned char>(*at - '0');
    const auto length = at - digits;
    const bool is_number = length <= 18 && (length > 0 || !is_negative);
    if (!leave_column() || !is_number) {
      if (is_number && at == end) return wrong_count();
      return Malformed{concat("I", i + 1), shown(field_at(begin, end)) + " is not an integer"};
    }
    numbers[i] = is_negative                   ? 0
                 : number < logarithms_.size() ? logarithms_[number]
                                               : static_cast<float>(std::log1p(static_cast<double>(number)));
  }

  for (std::size_t i = 0; i < kSlots; ++i) {
    std::uint64_t id = 0;
    if (end - at >= 8 && (end - at == 8 || at[8] == '\t') && parse_eight(at, id)) {
      at += 8;
    } else {
      const std::string_view field = field_at(at, end);
      const auto [stop, error] = std::from_chars(at, at + field.size(), id, 16);
      if (field.empty())
        id = kMissing;
      else if (error != std::errc() || stop != at + field.size() || field.size() > 8)
        return Malformed{concat("C", i + 1), shown(field) + " is not up to eight hexadecimal digits"};
      at += field.size();
    }
    keys[i] = layout_.key(i, id);
    if (!leave_column()) return wrong_count();
  }

  batch.labels.push_back(label);
  batch.numbers.insert(batch.numbers.end(), numbers.begin(), numbers.end());
  batch.keys.insert(batch.keys.end(), keys.begin(), keys.end());
  return std::nullopt;
}

}  // namespace shoal::data
