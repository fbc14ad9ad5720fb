// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/crc32c.h"

#include <doctest/doctest.h>

#include <vector>

using namespace shoal;

static std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::byte>(i * 167 + i / 251));
  return bytes;
}

TEST_CASE("crc32c gives the published values") {
  CHECK(crc32c(std::string_view("123456789")) == 0xe3069283u);
  CHECK(crc32c(std::string_view("")) == 0);
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});
  CHECK(crc32c(zeros) == 0x8a9136aau);  // RFC 3720, appendix B.4
  CHECK(crc32c(ones) == 0x62a8ab43u);
}

TEST_CASE("instruction and table give the same checksum at every length and beginning") {
  const auto bytes = some_bytes(20000);
  for (const std::size_t begin : {0, 1, 7})
    for (const std::size_t count : {0, 1, 7, 8, 9, 6143, 6144, 6145, 12288, 19000}) {
      const auto part = std::span(bytes).subspan(begin, count);
      CHECK(crc32c(part, 5) == crc32c_by_table(part, 5));
    }
}

TEST_CASE("a checksum goes on from part to part") {
  const auto bytes = some_bytes(10000);
  const auto all = std::span<const std::byte>(bytes);
  CHECK(crc32c(all.subspan(3333), crc32c(all.first(3333))) == crc32c(all));
}

TEST_CASE("a checksum reads as eight digits") { CHECK(hex(0xbeefu) == "0000beef"); }
