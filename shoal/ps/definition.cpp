// SPDX-License-Identifier: Apache-2.0
// One list of fields (each_field) makes the text, reads it, and finds what differs.
#include "shoal/ps/definition.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "shoal/base/error.h"
#include "shoal/base/names.h"
#include "shoal/base/text.h"
#include "shoal/ps/numbers.h"

namespace shoal::ps {

static constexpr Names<AdmissionRule, 4> kAdmissions = {{
    {AdmissionRule::Always, "always"},
    {AdmissionRule::Count, "count"},
    {AdmissionRule::Probability, "probability"},
    {AdmissionRule::Score, "score"},
}};

static constexpr std::size_t kMostParts = 8;
static constexpr std::uint32_t kWidest = 1 << 16;
static constexpr std::uint32_t kMostSlots = 1 << 16;

std::size_t width_of(const Definition& definition) {
  std::size_t width = 0;
  for (const Part& part : definition.parts) width += part.width;
  return width;
}
std::size_t row_bytes(const Definition& definition) {
  return width_of(definition) * number_bytes(is_wide(definition.dtype));
}

std::string_view name_of(AdmissionRule rule) { return name_in(kAdmissions, rule); }
std::optional<AdmissionRule> parse_admission(std::string_view name) { return parse_in(kAdmissions, name); }

// visit(name, field) for each one, in order. The number of parts comes before them.
template <class SomeDefinition, class Visit>
static void each_field(SomeDefinition& d, const Visit& visit) {
  visit("name", d.name);
  visit("seed", d.seed);
  visit("dtype", d.dtype);
  visit("shards", d.shards);
  auto num_parts = static_cast<std::uint32_t>(d.parts.size());
  visit("num_parts", num_parts);
  if constexpr (!std::is_const_v<SomeDefinition>)
    d.parts.resize(std::min<std::size_t>(num_parts, kMostParts));
  for (std::size_t i = 0; i < d.parts.size(); ++i) {
    const auto field = [&](const char* name, auto& value) { visit(concat("parts.", i, ".", name), value); };
    auto& part = d.parts[i];
    field("width", part.width);
    field("optimizer", part.optimizer.rule);
    field("rate", part.optimizer.rate);
    field("beta1", part.optimizer.beta1);
    field("beta2", part.optimizer.beta2);
    field("epsilon", part.optimizer.epsilon);
    field("start", part.optimizer.start);
    field("l1", part.optimizer.l1);
    field("l2", part.optimizer.l2);
    field("initial", part.initial.rule);
    field("scale", part.initial.scale);
    field("lowest", part.lowest);
    field("highest", part.highest);
    field("earned_at", part.earned_at);
  }
  visit("admission.rule", d.admission.rule);
  visit("admission.threshold", d.admission.threshold);
  visit("admission.candidates", d.admission.candidates);
  visit("scored", d.scored);
  visit("life.show_weight", d.life.show_weight);
  visit("life.click_weight", d.life.click_weight);
  visit("life.decay", d.life.decay);
  visit("life.min_score", d.life.min_score);
  visit("life.max_unseen_days", d.life.max_unseen_days);
  visit("life.max_rows", d.life.max_rows);
  visit("life.max_bytes", d.life.max_bytes);
  visit("life.slot_days", d.life.slot_days);
  visit("life.slot_bits", d.life.slot_bits);
}

std::string to_text(const SlotDays& days) {
  std::string text;
  for (const auto& [slot, unseen] : days) text += concat(text.empty() ? "" : " ", slot, ":", unseen);
  return text;
}

// A field's value as text, and back; the second ones say whether there is one.
static std::string text_of(const std::string& value) { return value; }
static std::string text_of(const SlotDays& value) { return to_text(value); }
static std::string text_of(bool value) { return value ? "true" : "false"; }
template <class Number>
  requires std::is_arithmetic_v<Number>
static std::string text_of(Number value) {
  std::string text(32, '\0');
  text.resize(static_cast<std::size_t>(std::to_chars(text.data(), text.data() + text.size(), value).ptr -
                                       text.data()));
  return text;
}
template <class Enum>
  requires std::is_enum_v<Enum>
static std::string text_of(Enum value) {
  return std::string(name_of(value));
}

static bool read(std::string_view text, std::string& value) {
  value = text;
  return true;
}
static bool read(std::string_view text, bool& value) {
  value = text == "true";
  return value || text == "false";
}
template <class Number>
  requires std::is_arithmetic_v<Number>
static bool read(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}
static bool ascend(const SlotDays& days) {
  return std::ranges::is_sorted(days, std::ranges::less_equal(), &SlotDays::value_type::first);
}
static bool read(std::string_view text, SlotDays& value) {
  value.clear();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::string_view entry = text.substr(begin, text.find(' ', begin) - begin);
    const std::size_t colon = entry.find(':');
    std::uint32_t slot = 0, days = 0;
    if (colon == std::string_view::npos || !read(entry.substr(0, colon), slot) ||
        !read(entry.substr(colon + 1), days))
      return false;
    value.emplace_back(slot, days);
    begin += entry.size() + 1;
  }
  std::ranges::sort(value);
  return ascend(value);
}
template <class Enum>
static bool assign(Enum& value, std::optional<Enum> parsed) {
  if (parsed) value = *parsed;
  return parsed.has_value();
}
static bool read(std::string_view text, RowRule& value) { return assign(value, parse_rule(text)); }
static bool read(std::string_view text, InitialRule& value) { return assign(value, parse_initial(text)); }
static bool read(std::string_view text, AdmissionRule& value) { return assign(value, parse_admission(text)); }
static bool read(std::string_view text, DType& value) { return assign(value, parse_dtype(text)); }

std::optional<SlotDays> parse_slot_days(std::string_view text) {
  SlotDays days;
  return read(text, days) ? std::optional(days) : std::nullopt;
}

// Fields at the end that only tables with days of slots write.
static constexpr std::string_view kOfSlots = "life.slot_";

std::string to_text(const Definition& definition) {
  std::string text;
  const bool has_slots = !definition.life.slot_days.empty() || definition.life.slot_bits != Life().slot_bits;
  each_field(definition, [&](const std::string& name, const auto& value) {
    if (name.starts_with(kOfSlots) && !has_slots) return;
    text += concat(name, " = ", text_of(value), "\n");
  });
  return text;
}

Definition definition_from_text(std::string_view text) {
  Definition definition;
  const bool has_slots = text.find(concat("\n", kOfSlots)) != text.npos;  // files of before have none
  each_field(definition, [&](const std::string& name, auto& value) {
    if (name.starts_with(kOfSlots) && !has_slots) return;
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::string begin = name + " = ";
    SHOAL_CHECK(
        line.size() < text.size() && line.starts_with(begin) && read(line.substr(begin.size()), value),
        InvalidInput, "ps: wanted a line ", in_quotes(begin + "…"), " of a table's definition, got ",
        in_quotes(line.substr(0, 80)));
    text.remove_prefix(line.size() + 1);
  });
  SHOAL_CHECK(text.empty(), InvalidInput,
              "ps: a table's definition goes on after its last field: ", in_quotes(text.substr(0, 80)));
  check(definition);
  return definition;
}

std::string difference(const Definition& here, const Definition& there) {
  std::vector<std::pair<std::string, std::string>> fields;
  each_field(here,
             [&](const std::string& name, const auto& value) { fields.emplace_back(name, text_of(value)); });
  std::string found;
  std::size_t at = 0;
  each_field(there, [&](const std::string&, const auto& value) {
    if (!found.empty() || at == fields.size()) return;
    const auto& [name, text] = fields[at++];
    if (const std::string other = text_of(value); other != text)
      found = concat(name, " is ", text, ", and ", other, " there");
  });
  return found;
}

static void check_part(const std::string& where, const Part& part, bool scored) {
  const auto want = [&](bool holds, const char* field, const auto& value, const char* wanted) {
    SHOAL_CHECK(holds, InvalidInput, where, field, " is ", value, ", wanted ", wanted);
  };
  const RowOptimizer& o = part.optimizer;
  want(part.width > 0 && part.width <= kWidest, "width", part.width, "1 to 65536");
  want(std::isfinite(o.rate) && o.rate > 0, "rate", o.rate, "a number above 0");
  want(o.beta1 >= 0 && o.beta1 < 1, "beta1", o.beta1, "0 to below 1");
  want(o.beta2 >= 0 && o.beta2 < 1, "beta2", o.beta2, "0 to below 1");
  want(std::isfinite(o.epsilon) && o.epsilon >= 0, "epsilon", o.epsilon, "a number not below 0");
  want(std::isfinite(o.start) && o.start >= 0, "start", o.start, "a number not below 0");
  want(std::isfinite(o.l1) && o.l1 >= 0, "l1", o.l1, "a number not below 0");
  want(o.l1 == 0 || o.rule == RowRule::Ftrl, "l1", o.l1, "0: only ftrl has it");
  want(std::isfinite(o.l2) && o.l2 >= 0, "l2", o.l2, "a number not below 0");
  want(std::isfinite(part.initial.scale), "scale", part.initial.scale, "a number");
  want(part.lowest < part.highest, "lowest", part.lowest, "a number below highest");
  want(std::isfinite(part.earned_at) && part.earned_at >= 0, "earned_at", part.earned_at,
       "a number not below 0");
  want(part.earned_at == 0 || scored, "earned_at", part.earned_at, "0, or scored = true: there is no score");
}

void check(const Definition& d) {
  SHOAL_CHECK(!d.name.empty() && d.name.size() <= 256 && d.name.find('\n') == std::string::npos, InvalidInput,
              "ps: a table's name is ", in_quotes(d.name.substr(0, 300)),
              ", wanted one line of 1 to 256 bytes");
  const std::string where = concat("ps: table ", in_quotes(d.name), ": ");
  const auto want = [&](bool holds, const char* field, const auto& value, const auto& wanted) {
    SHOAL_CHECK(holds, InvalidInput, where, field, " is ", value, ", wanted ", wanted);
  };
  want(d.dtype == DType::Float32 || d.dtype == DType::BFloat16 || d.dtype == DType::Float64, "dtype",
       name_of(d.dtype), "f32, bf16 or f64");
  want(std::has_single_bit(d.shards) && d.shards <= (1U << 20), "shards", d.shards,
       "a power of two up to 2^20");
  want(!d.parts.empty() && d.parts.size() <= kMostParts, "num_parts", d.parts.size(), "1 to 8");
  want(d.parts.front().earned_at == 0, "parts.0.earned_at", d.parts.front().earned_at,
       "0: the first part is made with its row");
  for (std::size_t i = 0; i < d.parts.size(); ++i)
    check_part(concat(where, "parts.", i, "."), d.parts[i], d.scored);
  const Admission& a = d.admission;
  want(a.rule != AdmissionRule::Count ||
           (a.threshold >= 1 && a.threshold <= 4095 && a.threshold == std::floor(a.threshold)),
       "admission.threshold", a.threshold, "a whole number from 1 to 4095");
  want(a.rule != AdmissionRule::Probability || (a.threshold > 0 && a.threshold <= 1), "admission.threshold",
       a.threshold, "a probability above 0");
  want(a.rule != AdmissionRule::Score || (a.threshold > 0 && a.threshold <= 63), "admission.threshold",
       a.threshold, "a score above 0, up to 63");
  want(a.candidates > 0 && a.candidates <= (std::uint64_t{1} << 36), "admission.candidates", a.candidates,
       "1 to 2^36");
  const Life& life = d.life;
  want(std::isfinite(life.show_weight) && life.show_weight >= 0, "life.show_weight", life.show_weight,
       "a number not below 0");
  want(std::isfinite(life.click_weight) && life.click_weight >= 0, "life.click_weight", life.click_weight,
       "a number not below 0");
  want(life.decay > 0 && life.decay <= 1, "life.decay", life.decay, "above 0, up to 1");
  want(std::isfinite(life.min_score), "life.min_score", life.min_score, "a number");
  want(life.slot_bits >= 1 && life.slot_bits <= 62, "life.slot_bits", life.slot_bits, "1 to 62");
  want(ascend(life.slot_days), "life.slot_days", to_text(life.slot_days),
       "each slot once, and slots ascending");
  const std::uint64_t slots = std::min<std::uint64_t>(kMostSlots, std::uint64_t{1} << life.slot_bits);
  want(life.slot_days.empty() || life.slot_days.back().first < slots, "life.slot_days",
       to_text(life.slot_days), concat("slots below ", slots, ": slot_bits is ", life.slot_bits));
  const bool bounded = life.min_score > 0 || life.max_unseen_days > 0 || life.max_rows > 0 ||
                       life.max_bytes > 0 || !life.slot_days.empty();
  want(d.scored || !bounded, "scored", "false", "true: without it no row can expire");
}

}  // namespace shoal::ps
