// SPDX-License-Identifier: Apache-2.0
#include "shoal/cost/price.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace shoal;
using namespace shoal::cost;
using sharding::Collective;

// A second for 10 operations, or 4 bytes; half a second for any kernel.
static Kind slow_kind() {
  return {.name = "slow",
          .memory = 1 << 20,
          .bandwidth = {4, {}},
          .kernel_seconds = 0.5,
          .arithmetic = {{DType::Float32, {10, {}}}},
          .slower = {{"aten::gelu", 3}}};
}

static program::Program two_matrices(std::int64_t width) {
  program::Program program;
  program.types = {ir::contiguous(DType::Float32, {2, width}), ir::contiguous(DType::Float32, {width, 3}),
                   ir::contiguous(DType::Float32, {2, 3})};
  return program;
}

static program::Instruction op(const std::string& name, std::vector<ir::Argument> arguments,
                               std::uint32_t out) {
  return program::Compute{.op = name, .arguments = std::move(arguments), .outputs = {program::Slot{out}}};
}

TEST_CASE("a kernel takes what is more, its operations or its bytes, and the least that one takes") {
  const Kind kind = slow_kind();
  const program::Program program = two_matrices(8);
  const auto mm = op("aten::mm", {{"self", program::Slot{0}}, {"mat2", program::Slot{1}}}, 2);
  CHECK(bytes_touched(mm, program) == 4 * (2 * 8 + 8 * 3 + 2 * 3));
  CHECK(seconds_of(mm, program, kind) == doctest::Approx(0.5 + 46));  // 96 operations are 9.6 s
  Kind wide = kind;
  wide.bandwidth.peak = 1e6;
  CHECK(seconds_of(mm, program, wide) == doctest::Approx(0.5 + 9.6));
  const auto gelu = op("aten::gelu", {{"self", program::Slot{0}}, {"approximate", ir::Symbol{"none"}}}, 0);
  CHECK(seconds_of(gelu, program, kind) == doctest::Approx(0.5 + 3 * 32));
  CHECK(seconds_of(program::Copy{program::Slot{0}, program::Slot{0}}, program, kind) ==
        doctest::Approx(0.5 + 32));
}

TEST_CASE("attention takes the least of a head for each of each sample, backward two and a half times") {
  Kind kind = slow_kind();
  kind.bandwidth.peak = 1e9;
  program::Program program;
  program.types = {ir::contiguous(DType::Float32, {3, 2, 5, 4}),
                   ir::contiguous(DType::Float32, {3, 2, 7, 4})};
  const auto attention = [&](const char* name) {
    return op(name, {{"query", program::Slot{0}}, {"key", program::Slot{1}}, {"value", program::Slot{1}}}, 0);
  };
  const double operations = 4 * 3 * 2 * 5 * 7 * 4;  // 10 a second
  CHECK(seconds_of(attention("shoal::attention"), program, kind) == doctest::Approx(0.5 + operations / 10));
  kind.head_seconds = 100;
  CHECK(seconds_of(attention("shoal::attention"), program, kind) ==
        doctest::Approx(0.5 + operations / 10 + 6 * 100));
  kind.slower.emplace("shoal::attention_backward", 2);
  CHECK(seconds_of(attention("shoal::attention_backward"), program, kind) ==
        doctest::Approx(0.5 + 2 * 2.5 * (operations / 10 + 6 * 100)));
}

TEST_CASE("views, waits and frees take no time; a lookup reads the rows it asks for") {
  const Kind kind = slow_kind();
  program::Program program = two_matrices(8);
  program.types.push_back(ir::contiguous(DType::Int64, {2}));
  program.types.push_back(ir::contiguous(DType::Float32, {2, 8}));
  CHECK(seconds_of(program::Free{{program::Slot{0}}}, program, kind) == 0);
  CHECK(seconds_of(program::Wait{{program::Slot{0}}}, program, kind) == 0);
  const auto lookup = op("aten::embedding", {{"weight", program::Slot{1}}, {"indices", program::Slot{3}}}, 4);
  CHECK(bytes_touched(lookup, program) == 2 * 64 + 16);
}

static Cluster cluster() {
  Cluster made;
  made.kinds.emplace("slow", slow_kind());
  made.hosts = {{"slow", 4, 2}};
  made.inside = {.latency = 1, .bandwidth = 100};
  made.between = {.latency = 10, .bandwidth = 10, .is_shared = true};
  return made;
}

static sharding::Message message(Collective kind, int ranks, std::int64_t in) {
  return {.kind = kind, .axis = "data", .ranks = ranks, .in = in, .out = in};
}

TEST_CASE("within a host a message takes rounds and bytes of the link between devices") {
  const Cluster all = cluster();
  const Spread pair = spread_of({0, 1}, all);
  CHECK(pair.hosts == 1);
  CHECK(seconds_of(message(Collective::AllReduce, 2, 100), pair, all) == doctest::Approx(2 + 4.0));
  CHECK(seconds_of(message(Collective::ReduceScatter, 2, 100), pair, all) == doctest::Approx(1 + 2.0));
  CHECK(seconds_of(message(Collective::AllGather, 4, 100), spread_of({0, 1, 2, 3}, all), all) ==
        doctest::Approx(3 + 12.0));
  Cluster uneven = all;
  uneven.inside.slower.emplace(Collective::AllGather, 1.5);
  CHECK(seconds_of(message(Collective::AllGather, 2, 100), pair, uneven) == doctest::Approx(1.5 * (1 + 4.0)));
  CHECK(seconds_of(message(Collective::AllReduce, 2, 100), pair, uneven) == doctest::Approx(2 + 4.0));
  Cluster shared = all;
  shared.inside.is_shared = true;
  CHECK(seconds_of(message(Collective::AllReduce, 2, 100), pair, shared) == doctest::Approx(2 + 4 * 4.0));
}

TEST_CASE("between hosts each byte crosses once for a host, and groups share its link") {
  const Cluster all = cluster();
  const Spread everybody = spread_of({0, 1, 2, 3, 4, 5, 6, 7}, all);
  CHECK(everybody.hosts == 2);
  CHECK(everybody.on_a_host == 4);
  // 400 bytes: within a host 2 * 3/4 of them at 100, then 2 * 1/2 at 10.
  CHECK(seconds_of(message(Collective::AllReduce, 8, 100), everybody, all) ==
        doctest::Approx(6 * 1 + 6 + 2 * 10 + 40.0));
  // Four groups of one rank a host use its link at once.
  const Spread across = spread_of({0, 4}, all);
  CHECK(seconds_of(message(Collective::AllReduce, 2, 100), across, all) ==
        doctest::Approx(2 * 10 + 4 * 40.0));
  Cluster uneven = all;
  uneven.between.slower.emplace(Collective::AllReduce, 2);
  CHECK(seconds_of(message(Collective::AllReduce, 8, 100), everybody, uneven) ==
        doctest::Approx(6 * 1 + 6 + 2 * (2 * 10 + 40.0)));
  Cluster own = all;
  own.between.is_shared = false;
  CHECK(seconds_of(message(Collective::AllReduce, 2, 100), across, own) == doctest::Approx(2 * 10 + 40.0));
}
