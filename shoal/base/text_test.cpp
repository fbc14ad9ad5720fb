// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/text.h"

#include <doctest/doctest.h>

#include <array>

using namespace shoal;

TEST_CASE("the nearest name is the one with the fewest edits") {
  static constexpr std::array<std::string_view, 4> kNames = {"seed", "steps", "batch_size", "learning_rate"};
  CHECK(nearest("step", kNames) == "steps");
  CHECK(nearest("lerning_rate", kNames) == "learning_rate");
  CHECK(nearest("batchsize", kNames) == "batch_size");
  CHECK(nearest("steps", kNames) == "steps");
}

TEST_CASE("two neighbours swapped are one edit") {
  static constexpr std::array<std::string_view, 2> kNames = {"fort", "from"};
  CHECK(nearest("form", kNames) == "fort");  // both one edit away: the first
  static constexpr std::array<std::string_view, 2> kOthers = {"foam_", "from"};
  CHECK(nearest("form", kOthers) == "from");
}

TEST_CASE("without candidates nothing is nearest") { CHECK(nearest("steps", {}).empty()); }

TEST_CASE("bytes are written with one decimal and the unit that keeps them below 1024") {
  CHECK(human_bytes(0) == "0B");
  CHECK(human_bytes(1023) == "1023B");
  CHECK(human_bytes(1536) == "1.5KiB");
  CHECK(human_bytes(1024 * 1024 - 1) == "1.0MiB");
  CHECK(human_bytes(std::int64_t{5} << 30) == "5.0GiB");
}

TEST_CASE("bytes are read with a unit, and nothing else is") {
  CHECK(parse_bytes("2GiB") == std::int64_t{2} << 30);
  CHECK(parse_bytes("1.5MiB") == 3 << 19);
  CHECK(parse_bytes("17B") == 17);
  for (const char* text : {"", "GiB", "17", "2GB", "2 GiB", "-1B", "0B", "1e30TiB", "nanB"})
    CHECK_FALSE(parse_bytes(text).has_value());
}

TEST_CASE("quoting leaves no bare quote, backslash or control character") {
  CHECK(in_quotes("a\"b\\c\n\t\r\x01\x7f\xc3\xa9") == "\"a\\\"b\\\\c\\n\\t\\r\\x01\\x7f\xc3\xa9\"");
}
