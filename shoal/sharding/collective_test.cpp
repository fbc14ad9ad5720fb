// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/collective.h"

#include <doctest/doctest.h>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/sharding/redistribute.h"

using namespace shoal;
using namespace shoal::sharding;

// The message of the one node of this graph, as rank 1 of three sees it.
static std::optional<Message> message(const std::string& source, const std::string& node) {
  const ir::Graph graph = ir::from_text("graph local\n%0 = input \"x\" : " + source + "\n%1 : " + node +
                                        " @forward \"\"\nreturn output \"y\" %1\n");
  const auto type_of = [&](ir::ValueId value) -> const ir::TensorType& { return graph.at(value).type; };
  return message_of(graph.nodes[0], type_of, mesh_from_text("tensor=3"), 1);
}

static std::string said(const std::string& source, const std::string& node) {
  const auto found = message(source, node);
  return found ? to_text(*found) + ", " + std::to_string(found->bytes()) + " bytes" : "nothing";
}

TEST_CASE("a message says what it moves") {
  CHECK(said("f32[6]", "f32[6] = shoal::all_reduce(self=%0, axis=\"tensor\", combine=\"max\")") ==
        "all_reduce tensor f32 max 6 -> 6, 32 bytes");
  CHECK(said("f64[6]", "f64[2] = shoal::reduce_scatter(self=%0, axis=\"tensor\", combine=\"sum\")") ==
        "reduce_scatter tensor f64 sum 6 -> 2, 32 bytes");
  CHECK(said("bf16[2]", "bf16[6] = shoal::all_gather(self=%0, axis=\"tensor\")") ==
        "all_gather tensor bf16 2 -> 6, 8 bytes");
  CHECK(said("bool[5]",
             "bool[6] = shoal::all_to_all(self=%0, axis=\"tensor\", sends=[2, 2, 1], receives=[2, 2, 2])") ==
        "all_to_all tensor u8 5 -> 6 (2 2 1, 2 2 2), 3 bytes");
}

TEST_CASE("what is no message, or is empty, moves nothing") {
  CHECK(said("f32[6]", "f32[6] = aten::relu(self=%0)") == "nothing");
  CHECK(said("f32[0]", "f32[0] = shoal::all_reduce(self=%0, axis=\"tensor\", combine=\"sum\")") == "nothing");
  CHECK(error_of([] {
          said("f32[6]", "f32[6] = shoal::all_reduce(self=%0, axis=\"tensor\", combine=\"mean\")");
        }).find("'mean', not sum, min or max") != std::string::npos);
}

// The most that a rank sends of a value in parts that are not alike.
TEST_CASE("what a change would cost is what its messages will move") {
  const auto mesh = mesh_from_text("data=3");
  const auto bytes = [&](const Shape& shape, const char* from, const char* to) {
    std::int64_t sum = 0;
    for (const Step& step : redistribution(mesh, shape, 4, layout_from_text(from), layout_from_text(to)))
      sum += step.bytes;
    return sum;
  };
  CHECK(bytes({5, 2}, "[S(0)]", "[R]") == 4 * 2 * 4);          // two rows to two ranks
  CHECK(bytes({5, 2}, "[P(sum)]", "[S(0)]") == (10 - 2) * 4);  // the last rank keeps one row of five
  CHECK(bytes({5, 4}, "[S(0)]", "[S(1)]") == (8 - 4) * 4);
  CHECK(bytes({12}, "[S(0)]", "[S(0, outer=2)]") == 4 * 2 * 4);  // gathered, and cut again
}

TEST_CASE("ranges of a part are those of its box") {
  const auto mesh = mesh_from_text("data=3");
  for (const Shard& shard : {Shard{}, Shard{.dim = 0, .outer = 2}, Shard{.dim = 0, .outer = 1, .unit = 2},
                             Shard{.dim = 0, .outer = 2, .unit = 3}})
    for (const std::int64_t whole : {0, 6, 12, 24})
      for (int rank = 0; rank < 3; ++rank) {
        const Layout layout = {{shard}};
        std::vector<Range> joined;  // a box joins ranges that go on
        for (const Range& range : part_ranges(shard, whole, rank, 3))
          if (!joined.empty() && joined.back().end == range.begin)
            joined.back().end = range.end;
          else
            joined.push_back(range);
        CHECK(box_of(mesh, layout, {whole}, rank).dims[0] == joined);
        CHECK(part_size(shard, whole, rank, 3) == local_shape(mesh, layout, {whole}, rank)[0]);
      }
}
