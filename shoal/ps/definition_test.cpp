// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/definition.h"

#include <doctest/doctest.h>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::ps;

static Definition two_parts() {
  return {.name = "ids",
          .seed = 7,
          .dtype = DType::BFloat16,
          .shards = 4,
          .parts = {{.width = 1, .optimizer = {.rule = RowRule::Ftrl, .rate = 0.1, .l1 = 0.3}},
                    {.width = 8, .lowest = -1, .highest = 1, .earned_at = 2.5f}},
          .admission = {.rule = AdmissionRule::Count, .threshold = 3},
          .scored = true,
          .life = {.decay = 0.98f, .max_rows = 1000}};
}

TEST_CASE("a definition is text that reads back") {
  CHECK(definition_from_text(to_text(two_parts())) == two_parts());
  const std::string text = to_text(two_parts());
  CHECK(error_of([&] { definition_from_text(text + "more\n"); }) ==
        "ps: a table's definition goes on after its last field: \"more\\n\"");
  CHECK(error_of([&] { definition_from_text("name = ids\nsed = 1\n"); }) ==
        "ps: wanted a line \"seed = …\" of a table's definition, got \"sed = 1\"");
  for (std::size_t size = 0; size < text.size(); ++size)
    CHECK(error_of([&] { definition_from_text(text.substr(0, size)); }) != "");
}

TEST_CASE("days of slots are text, at the end, where there are any") {
  Definition slots = two_parts();
  slots.life.slot_days = {{3, 7}, {12, 0}};
  slots.life.slot_bits = 20;
  const std::string text = to_text(slots);
  CHECK(text == to_text(two_parts()) + "life.slot_days = 3:7 12:0\nlife.slot_bits = 20\n");
  CHECK(definition_from_text(text) == slots);
  CHECK(difference(slots, two_parts()) == "life.slot_days is 3:7 12:0, and  there");
  CHECK(parse_slot_days("12:0 3:7") == slots.life.slot_days);
  for (const char* wrong : {"3", "3:", ":7", "3:7,12:0", "3:7 3:8", "3:7  12:0", "-3:7", "3:7 x"}) {
    CAPTURE(wrong);
    CHECK(!parse_slot_days(wrong));
  }
  for (std::size_t size = to_text(two_parts()).size() + 1; size < text.size(); ++size)
    CHECK(error_of([&] { definition_from_text(text.substr(0, size)); }) != "");
}

TEST_CASE("two definitions that differ say in which field, and how") {
  Definition other = two_parts();
  CHECK(difference(two_parts(), other) == "");
  other.parts[1].optimizer.rate = 0.5;
  CHECK(difference(two_parts(), other) == "parts.1.rate is 0.01, and 0.5 there");
  other.parts.pop_back();
  CHECK(difference(two_parts(), other) == "num_parts is 2, and 1 there");
}

TEST_CASE("a definition that is wrong is refused by its field") {
  const auto refusal = [](auto change) {
    Definition definition = two_parts();
    change(definition);
    return error_of([&] { check(definition); });
  };
  CHECK(refusal([](Definition&) {}) == "");
  CHECK(refusal([](Definition& d) { d.shards = 6; }) ==
        "ps: table \"ids\": shards is 6, wanted a power of two up to 2^20");
  CHECK(refusal([](Definition& d) { d.parts[1].width = 0; }) ==
        "ps: table \"ids\": parts.1.width is 0, wanted 1 to 65536");
  CHECK(refusal([](Definition& d) { d.parts[1].optimizer.l1 = 1; }) ==
        "ps: table \"ids\": parts.1.l1 is 1, wanted 0: only ftrl has it");
  CHECK(refusal([](Definition& d) { d.parts[0].earned_at = 1; }) ==
        "ps: table \"ids\": parts.0.earned_at is 1, wanted 0: the first part is made with its row");
  CHECK(refusal([](Definition& d) { d.dtype = DType::Float16; }) ==
        "ps: table \"ids\": dtype is f16, wanted f32, bf16 or f64");
  CHECK(refusal([](Definition& d) { d.admission.threshold = 2.5f; }) ==
        "ps: table \"ids\": admission.threshold is 2.5, wanted a whole number from 1 to 4095");
  CHECK(refusal([](Definition& d) { d.scored = false; }) ==
        "ps: table \"ids\": parts.1.earned_at is 2.5, wanted 0, or scored = true: there is no score");
  CHECK(refusal([](Definition& d) {
          d.scored = false;
          d.parts.pop_back();
        }) == "ps: table \"ids\": scored is false, wanted true: without it no row can expire");
  CHECK(refusal([](Definition& d) {
          d.life.slot_bits = 2;
          d.life.slot_days = {{3, 1}, {4, 1}};
        }) == "ps: table \"ids\": life.slot_days is 3:1 4:1, wanted slots below 4: slot_bits is 2");
  CHECK(refusal([](Definition& d) { d.life.slot_days = {{3, 1}, {3, 2}}; }) ==
        "ps: table \"ids\": life.slot_days is 3:1 3:2, wanted each slot once, and slots ascending");
  CHECK(refusal([](Definition& d) { d.life.slot_bits = 63; }) ==
        "ps: table \"ids\": life.slot_bits is 63, wanted 1 to 62");
  CHECK(refusal([](Definition& d) { d.name = "a\nb"; }) ==
        "ps: a table's name is \"a\\nb\", wanted one line of 1 to 256 bytes");
}
