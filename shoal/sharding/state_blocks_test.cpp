// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/state_blocks.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/sharding/mesh.h"

using namespace shoal::sharding;

TEST_CASE("maxima have the outer dims of a tensor, from those on that hold whole blocks") {
  CHECK(maxima_of({512, 2048}) == Shape{512, 8});
  CHECK(maxima_of({300, 100}) == Shape{118});
  CHECK(maxima_of({64, 64}) == Shape{16});
  CHECK(maxima_of({10, 4, 64, 3}) == Shape{10, 3});
  CHECK(maxima_of({4097}) == Shape{17});
  CHECK(is_coded({64, 64}));
  CHECK(!is_coded({4095}));
  CHECK(!is_coded({}));
}

TEST_CASE("maxima are cut as their codes are, and a layout that cuts a block has none") {
  const Mesh mesh{{{.name = "shard", .size = 2}, {.name = "tensor", .size = 2}}};
  const auto of = [&](const char* codes, const Shape& shape) -> std::string {
    const auto maxima = layout_of_maxima(mesh, layout_from_text(codes), shape);
    return maxima ? to_text(*maxima) : "cut";
  };
  CHECK(of("[R, R]", {300, 100}) == "[R, R]");
  CHECK(of("[S(0), R]", {512, 2048}) == "[S(0), R]");
  CHECK(of("[R, S(1)]", {512, 2048}) == "[R, S(1)]");
  CHECK(of("[S(0), S(1)]", {512, 2048}) == "[S(0), S(1)]");
  CHECK(of("[S(0), S(0)]", {64, 256}) == "[S(0), S(0)]");
  CHECK(of("[R, S(1)]", {512, 256}) == "cut");
  CHECK(of("[S(0), R]", {300, 100}) == "cut");
  CHECK(of("[S(0, weights=192:108), R]", {300, 100}) == "[S(0, weights=75:43), R]");
  CHECK(of("[S(0), R]", {64, 64}) == "[S(0), R]");
  CHECK(of("[R, S(1, unit=256)]", {16, 768}) == "[R, S(1)]");
  CHECK(of("[S(0, weights=0:1), R]", {300, 100}) == "[S(0, weights=0:118), R]");
}
