// SPDX-License-Identifier: Apache-2.0
// What partition makes of a placed step, and what gather_ahead, buckets and packing make of that, as text.
// Above 400 lines: one case for each rule of these; they share the placed steps and how one is told.
#include <doctest/doctest.h>

#include <string>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/buckets.h"
#include "shoal/rewrite/gather_ahead.h"
#include "shoal/rewrite/packing.h"
#include "shoal/rewrite/partition.h"
#include "shoal/rewrite/placed_text.h"
#include "shoal/rewrite/transfer.h"

using namespace shoal;
using namespace shoal::rewrite;
using sharding::layout_from_text;
using sharding::mesh_from_text;

namespace {

// Two layers; their gradients, the last one's first.
const char* const kStep = R"(graph captured
%0 = parameter "a" : f32[4, 4]
%1 = parameter "b" : f32[4, 4]
%2 = input "x" : f32[8, 4]
%3 : f32[8, 4] = aten::mm(self=%2, mat2=%0) @forward "first"
%4 : f32[8, 4] = aten::mm(self=%3, mat2=%1) @forward "second"
%5 : f32[4, 8]{1,4} = aten::t(self=%3) @backward "second"
%6 : f32[4, 4] = aten::mm(self=%5, mat2=%4) @backward "second"
%7 : f32[4, 8]{1,4} = aten::t(self=%2) @backward "first"
%8 : f32[4, 4] = aten::mm(self=%7, mat2=%4) @backward "first"
return gradient "a" %8, gradient "b" %6
)";

ParameterPins pins_of(const char* kept, const char* used, const char* gradient) {
  return {.kept = layout_from_text(kept),
          .used = layout_from_text(used),
          .gradient = layout_from_text(gradient),
          .updated = layout_from_text(gradient),
          .summed = layout_from_text(gradient)};
}

Placed placed_as(const char* mesh, const char* kept, const char* gradient, const char* input) {
  ParameterPins pins = pins_of(kept, kept, gradient);
  pins.used = sharding::replicated(mesh_from_text(mesh));
  return place(
      ir::from_text(kStep), mesh_from_text(mesh),
      {.parameters = {{"a", pins}, {"b", pins}}, .inputs = {{"x", layout_from_text(input)}}, .outputs = {}});
}

// One line a node: the op, and of a transfer kind, axis and how many tensors.
std::string story_of(const ir::Graph& graph) {
  ir::verify(graph);
  std::string story;
  for (const ir::Node& node : graph.nodes) {
    if (is_transfer(node)) {
      const Journey journey = journey_in(node);
      story += concat(name_of(journey.kind), ' ', journey.axis, " x", node.outputs.size(), ' ',
                      name_of(node.phase));
    } else {
      story += node.op;
    }
    story += '\n';
  }
  return story;
}

}  // namespace

TEST_CASE("partition: a transfer for each gradient, where backward makes it") {
  CHECK(story_of(partition(placed_as("replicate=2", "[R]", "[R]", "[S(0)]"), 0)) ==
        "aten::mm\naten::mm\naten::t\naten::mm\nall_reduce replicate x1 backward\n"
        "aten::t\naten::mm\nall_reduce replicate x1 backward\n");
}

TEST_CASE("partition: what is kept in parts is gathered where it is used, for backward anew") {
  Placed placed = placed_as("shard=2", "[S(0)]", "[S(0)]", "[S(0)]");
  CHECK(story_of(partition(placed, 1)) ==
        "all_gather shard x1 forward\naten::mm\nall_gather shard x1 forward\naten::mm\n"
        "aten::t\naten::mm\nreduce_scatter shard x1 backward\n"
        "aten::t\naten::mm\nreduce_scatter shard x1 backward\n");
}

namespace {
// A parameter that backward reads too: it is kept in parts, and used whole.
Placed read_twice(bool gathers_again) {
  const ParameterPins pins = pins_of("[S(0)]", "[R]", "[S(0)]");
  return place(ir::from_text(R"(graph captured
%0 = parameter "w" : f32[4, 4]
%1 = input "x" : f32[8, 4]
%2 : f32[8, 4] = aten::mm(self=%1, mat2=%0) @forward ""
%3 : f32[4, 4]{1,4} = aten::t(self=%0) @backward ""
%4 : f32[8, 4] = aten::mm(self=%2, mat2=%3) @backward ""
return output "y" %4
)"),
               mesh_from_text("shard=2"),
               {.parameters = {{"w", pins}},
                .inputs = {{"x", layout_from_text("[S(0)]")}},
                .outputs = {},
                .gathers_again = gathers_again});
}
}  // namespace

TEST_CASE("partition: a parameter is gathered anew for backward, unless it is to stay") {
  CHECK(story_of(partition(read_twice(true), 0)) ==
        "all_gather shard x1 forward\naten::mm\nall_gather shard x1 backward\naten::t\naten::mm\n"
        "all_gather shard x1 backward\n");
  CHECK(story_of(partition(read_twice(false), 0)) ==
        "all_gather shard x1 forward\naten::mm\naten::t\naten::mm\nall_gather shard x1 backward\n");
}

TEST_CASE("partition: a parameter that is used in fewer bytes is converted in parts, and gathered as that") {
  const ParameterPins pins = pins_of("[S(0)]", "[R]", "[S(0)]");
  const auto read_as = [&](const std::string& dtype, const std::string& other) {
    const ir::Graph graph = ir::from_text(
        "graph captured\n%0 = parameter \"w\" : f32[4, 4]\n%1 = input \"x\" : " + dtype +
        "[8, 4]\n%2 : " + dtype + "[4, 4] = aten::_to_copy(self=%0, dtype=" + dtype +
        ") @forward\n%3 : " + dtype + "[8, 4] = aten::mm(self=%1, mat2=%2) @forward\n%4 : " + dtype +
        "[4, 4]{1,4} = aten::t(self=%2) @backward\n%5 : " + dtype +
        "[8, 4] = aten::mm(self=%3, mat2=%4) @backward\n" + other);
    return partition(
        place(graph, mesh_from_text("shard=2"),
              {.parameters = {{"w", pins}}, .inputs = {{"x", layout_from_text("[S(0)]")}}, .outputs = {}}),
        0);
  };
  const ir::Graph local = read_as("bf16", "return output \"y\" %5\n");
  CHECK(
      story_of(local) ==
      "aten::_to_copy\nall_gather shard x1 forward\naten::mm\naten::_to_copy\nall_gather shard x1 backward\n"
      "aten::t\naten::mm\nall_gather shard x1 backward\n");
  for (const ir::Node& node : local.nodes)
    if (is_transfer(node)) CHECK(local.at(*node.outputs[0]).type.dtype == DType::BFloat16);
  // As many bytes, or the parameter itself is read too: it is gathered.
  CHECK(story_of(read_as("f32", "return output \"y\" %5\n"))
            .starts_with("all_gather shard x1 forward\naten::_to_copy"));
  CHECK(
      story_of(
          read_as("bf16",
                  "%6 : f32[4, 4] = aten::exp(self=%0) @backward\nreturn output \"y\" %5, output \"z\" %6\n"))
          .starts_with("all_gather shard x1 forward\naten::_to_copy"));
}

TEST_CASE("partition: of what is there already, it starts from what moves the fewest bytes") {
  // %1 has been gathered when its columns are wanted: they are a slice, and no exchange.
  const Placed placed = placed_from_text(R"(placed "data=2" gathers=again
graph captured
%0 = input "x" : f32[4, 4]
%1 : f32[4, 4] = aten::neg(self=%0) @forward ""
%2 : f32[4, 4] = aten::relu(self=%1) @forward ""
%3 : f32[4, 4] = aten::exp(self=%1) @forward ""
return output "a" %2, output "b" %3
layouts
source 0 [S(0)]
node 0 in [S(0)] out [S(0)]
node 1 in [R] out [R]
node 2 in [S(1)] out [S(1)]
value 0 [S(0)]
value 1 [S(0)]
value 2 [R]
value 3 [S(1)]
result 0 [R]
result 1 [S(1)]
)");
  CHECK(story_of(partition(placed, 0)) ==
        "aten::neg\nall_gather data x1 forward\naten::relu\nshoal::part\naten::exp\n");
}

TEST_CASE("partition: a view is taken of what has been brought there, and not brought again") {
  const Placed placed = placed_from_text(R"(placed "data=2" gathers=again
graph captured
%0 = input "x" : f32[4, 4]
%1 : f32[4, 4] = aten::neg(self=%0) @forward ""
%2 : f32[4, 4]{1,4} = aten::t(self=%1) @forward ""
%3 : f32[4, 4] = aten::exp(self=%1) @forward ""
%4 : f32[4, 4] = aten::mm(self=%3, mat2=%2) @forward ""
return output "a" %4
layouts
source 0 [S(0)]
node 0 in [S(0)] out [S(0)]
node 1 in [S(0)] out [S(1)]
again 1 in [R] out [R]
node 2 in [R] out [R]
node 3 in [R] [R] out [R]
value 0 [S(0)]
value 1 [S(0)]
value 2 [S(1)]
value 3 [R]
value 4 [R]
result 0 [R]
)");
  CHECK(story_of(partition(placed, 0)) ==
        "aten::neg\naten::t\nall_gather data x1 forward\naten::exp\naten::t\naten::mm\n");
}

TEST_CASE("partition: a parameter that is updated in parts is written over where it is, as it lies") {
  const ParameterPins pins = pins_of("[R]", "[R]", "[S(0)]");
  const Placed placed =
      place(ir::from_text(R"(graph captured
%0 = parameter "w" : f32[4, 6]{1,4}
%1 = gradient "w" : f32[4, 6]
%2 = scalar "lr.0" : f64[]
%3 : f32[4, 6]{1,4} = shoal::sgd(parameters=[%0], gradients=[%1], momentum_buffers=%[], lr=%2, scale=none, momentum=0.0, weight_decay=0.0, nesterov=false) @update
return gradient "w" %1, parameter "w" %3
)"),
            mesh_from_text("shard=2"), {.parameters = {{"w", pins}}, .inputs = {}, .outputs = {}});
  const ir::Graph local = partition(placed, 0);
  CHECK(story_of(local) == "shoal::part\nshoal::sgd\nall_gather shard x1 update\n");
  const Parcel parcel = parcels_in(local, local.nodes.back())[0];
  CHECK(parcel.over == ir::ValueId{0});
  CHECK(ir::to_text(parcel.to) == "f32[4, 6]{1,4}");
}

TEST_CASE("gather_ahead: what is used soon after travels along, as far as the bytes go") {
  const ir::Graph local = partition(placed_as("shard=2", "[S(0)]", "[S(0)]", "[S(0)]"), 0);
  CHECK(story_of(gather_ahead(local, 128)).starts_with("all_gather shard x2 forward\naten::mm\naten::mm\n"));
  CHECK(gather_ahead(local, 127) == local);
}

TEST_CASE("gather_ahead: parameters are gathered before their use, so many bytes of them, phase by phase") {
  std::string text = "graph local\n";
  for (int i = 0; i < 4; ++i) text += concat('%', i, " = parameter \"", i, "\" : f32[2]\n");
  for (int i = 0; i < 4; ++i)
    text += concat(
        '%', 4 + 2 * i, " : f32[4] = shoal::transfer(tensors=[%", i,
        "], over=%[], kind=\"all_gather\", axis=\"shard\", dims=[0], outers=[1], units=[1], wholes=[4], "
        "before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], "
        "bytes=[16]) @",
        i < 3 ? "forward" : "backward", "\n%", 5 + 2 * i, " : f32[4] = aten::neg(self=%", 4 + 2 * i, ") @",
        i < 3 ? "forward" : "backward", '\n');
  const ir::Graph local =
      ir::from_text(text + "return output \"a\" %5, output \"b\" %7, output \"c\" %9, output \"d\" %11\n");
  const std::string one = "all_gather shard x1 forward\n", neg = "aten::neg\n",
                    last = "all_gather shard x1 backward\naten::neg\n";
  CHECK(story_of(gather_ahead(local, 0, 15)) == one + neg + one + neg + one + neg + last);
  CHECK(story_of(gather_ahead(local, 0, 16)) == one + one + neg + one + neg + neg + last);
  CHECK(story_of(gather_ahead(local, 0, 1 << 20)) == one + one + one + neg + neg + neg + last);
}

TEST_CASE("buckets: gradients go when there are enough bytes of them, and when no more come") {
  const ir::Graph local = partition(placed_as("replicate=2", "[R]", "[R]", "[S(0)]"), 0);
  CHECK(story_of(buckets(local, 1 << 20)) ==
        "aten::mm\naten::mm\naten::t\naten::mm\naten::t\naten::mm\nall_reduce replicate x2 backward\n");
  CHECK(story_of(buckets(local, 64)) == story_of(local));
}

TEST_CASE(
    "buckets: where messages go on while backward does, the last ones are ever smaller, down to 1 MiB") {
  constexpr int kGradients = 12;  // of 1 MiB
  std::string text = "graph local\n", results = "return";
  for (int i = 0; i < kGradients; ++i) text += concat('%', i, " = input \"", i, "\" : f32[262144]\n");
  for (int i = 0; i < kGradients; ++i) {
    text += concat(
        '%', kGradients + i, " : f32[262144] = shoal::transfer(tensors=[%", i,
        "], over=%[], kind=\"all_reduce\", axis=\"data\", combine=\"sum\", dims=[0], outers=[1], units=[1], "
        "wholes=[0], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], "
        "even=[true], bytes=[1048576]) @backward\n");
    results += concat(i == 0 ? "" : ",", " gradient \"", i, "\" %", kGradients + i);
  }
  const ir::Graph local = ir::from_text(text + results + "\n");
  const auto of = [](std::initializer_list<int> counts) {
    std::string story;
    for (const int count : counts) story += concat("all_reduce data x", count, " backward\n");
    return story;
  };
  const auto going_on = [&](std::int64_t limit) {
    return story_of(buckets(local, limit, DType::Float32, true));
  };
  CHECK(story_of(buckets(local, 25 << 20)) == of({12}));
  CHECK(going_on(25 << 20) == of({6, 3, 2, 1}));
  CHECK(going_on(4 << 20) == of({4, 4, 2, 1, 1}));
  CHECK(going_on(1 << 10) == story_of(local));
}

TEST_CASE("buckets: a way of several steps is taken step by step by all of them") {
  const ir::Graph local =
      partition(placed_as("replicate=2 shard=2", "[R, R]", "[R, S(0)]", "[S(0), S(0)]"), 0);
  CHECK(story_of(buckets(local, 1 << 20)) ==
        "aten::mm\naten::mm\naten::t\naten::mm\naten::t\naten::mm\n"
        "reduce_scatter shard x2 backward\nall_reduce replicate x2 backward\n");
}

TEST_CASE("buckets: gradients travel in fewer bytes, all of the way, and come back as what they were") {
  const ir::Graph local =
      partition(placed_as("replicate=2 shard=2", "[R, R]", "[R, S(0)]", "[S(0), S(0)]"), 0);
  const std::string forward = "aten::mm\naten::mm\naten::t\naten::mm\n", there = "aten::_to_copy\n";
  const std::string way = "reduce_scatter shard x2 backward\nall_reduce replicate x2 backward\n";
  const ir::Graph half = buckets(local, 1 << 20, DType::BFloat16);
  CHECK(story_of(half) == forward + there + "aten::t\naten::mm\n" + there + way + there + there);
  for (const ir::Node& node : half.nodes)
    if (is_transfer(node)) {
      CHECK(half.at(*node.outputs[0]).type.dtype == DType::BFloat16);
      CHECK(bytes_in(node) == std::vector<std::int64_t>{32, 32});  // of 4 x 4
    }
  for (const auto& result : half.results) CHECK(half.at(result.value).type.dtype == DType::Float32);
  // Twice as many in as many bytes.
  CHECK(story_of(buckets(local, 64, DType::BFloat16)) == story_of(half));
  CHECK(story_of(buckets(local, 64)) != story_of(buckets(local, 1 << 20)));
  // Of float16 in proportion to the loss's scale, which is a source.
  const ir::Graph scaled = buckets(local, 1 << 20, DType::Float16);
  const std::string back = there + "aten::div.Tensor\n", start = "aten::mul.Tensor\n" + there;
  CHECK(story_of(scaled) == forward + start + "aten::t\naten::mm\n" + start + way + back + back);
  CHECK(scaled.sources.back().name == "loss_scale");
}

TEST_CASE("buckets: a gradient that is read is brought before") {
  const ir::Graph local = ir::from_text(R"(graph local
%0 = input "x" : f32[4]
%1 = input "y" : f32[4]
%2 : f32[4] = shoal::transfer(tensors=[%0], over=%[], kind="all_reduce", axis="data", combine="sum", dims=[0], outers=[1], units=[1], wholes=[0], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
%3 : f32[4] = aten::neg(self=%2) @backward
%4 : f32[4] = shoal::transfer(tensors=[%1], over=%[], kind="all_reduce", axis="data", combine="sum", dims=[0], outers=[1], units=[1], wholes=[0], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
return gradient "a" %2, gradient "b" %4, output "z" %3
)");
  CHECK(story_of(buckets(local, 1 << 20)) ==
        "all_reduce data x1 backward\naten::neg\nall_reduce data x1 backward\n");
}

TEST_CASE(
    "buckets: what has another dtype, or is combined otherwise, goes by itself; what is no gradient stays") {
  const auto transfers = [](const char* types, const char* combine, const char* results) {
    const std::string other = types;
    const std::string rest =
        R"(, dims=[0], outers=[1], units=[1], wholes=[0], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
)";
    const auto of = [&](const char* tensor, const std::string& how) {
      return concat("shoal::transfer(tensors=[", tensor,
                    "], over=%[], kind=\"all_reduce\", axis=\"data\", combine=\"", how, '"', rest);
    };
    return story_of(
        buckets(ir::from_text(concat("graph local\n%0 = input \"x\" : f32[4]\n%1 = input \"y\" : ", other,
                                     "\n%2 : f32[4] = ", of("%0", "sum"), "%3 : ", other, " = ",
                                     of("%1", combine), "return ", results, "\n")),
                1 << 20));
  };
  const std::string two = "all_reduce data x1 backward\nall_reduce data x1 backward\n";
  CHECK(transfers("f32[4]", "sum", "gradient \"a\" %2, gradient \"b\" %3") ==
        "all_reduce data x2 backward\n");
  CHECK(transfers("f64[4]", "sum", "gradient \"a\" %2, gradient \"b\" %3") == two);
  CHECK(transfers("f32[4]", "max", "gradient \"a\" %2, gradient \"b\" %3") == two);
  CHECK(transfers("f32[4]", "sum", "output \"a\" %2, output \"b\" %3") == two);
}

TEST_CASE("buckets: a way ends where the gradient is handed out, and another begins") {
  // ZeRO-1 with replicas: summed over these, handed out, and brought to parts for the update.
  const ir::Graph local = ir::from_text(R"(graph local
%0 = input "x" : f32[4]
%1 = input "y" : f32[4]
%2 : f32[4] = shoal::transfer(tensors=[%0], over=%[], kind="all_reduce", axis="data", combine="sum", dims=[0], outers=[1], units=[1], wholes=[0], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
%3 : f32[4] = shoal::transfer(tensors=[%1], over=%[], kind="all_reduce", axis="data", combine="sum", dims=[0], outers=[1], units=[1], wholes=[0], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
%4 : f32[2] = shoal::transfer(tensors=[%2], over=%[], kind="reduce_scatter", axis="shard", combine="sum", dims=[0], outers=[1], units=[1], wholes=[4], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
%5 : f32[2] = shoal::transfer(tensors=[%3], over=%[], kind="reduce_scatter", axis="shard", combine="sum", dims=[0], outers=[1], units=[1], wholes=[4], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
return gradient "a" %2, gradient "b" %3, output "c" %4, output "d" %5
)");
  CHECK(story_of(buckets(local, 1 << 20)) ==
        "all_reduce data x2 backward\nreduce_scatter shard x2 backward\n");
}

TEST_CASE("buckets: a way that begins where another ends waits for that one's bucket") {
  const ir::Graph local = ir::from_text(R"(graph local
%0 = input "x" : f32[4]
%1 = input "y" : f32[4]
%2 : f32[4] = shoal::transfer(tensors=[%0], over=%[], kind="all_reduce", axis="data", combine="sum", dims=[0], outers=[1], units=[1], wholes=[0], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
%3 : f32[2] = shoal::transfer(tensors=[%2], over=%[], kind="reduce_scatter", axis="shard", combine="sum", dims=[0], outers=[1], units=[1], wholes=[4], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
%4 : f32[4] = shoal::transfer(tensors=[%1], over=%[], kind="all_reduce", axis="data", combine="sum", dims=[0], outers=[1], units=[1], wholes=[0], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
return gradient "a" %2, gradient "b" %4, output "c" %3
)");
  CHECK(story_of(buckets(local, 1 << 20)) ==
        "all_reduce data x1 backward\nreduce_scatter shard x1 backward\nall_reduce data x1 backward\n");
}

TEST_CASE("gather_ahead: what forward gathers last and backward first do not travel together") {
  const ir::Graph local = ir::from_text(R"(graph local
%0 = parameter "a" : f32[2]
%1 = parameter "b" : f32[2]
%2 : f32[4] = shoal::transfer(tensors=[%0], over=%[], kind="all_gather", axis="shard", dims=[0], outers=[1], units=[1], wholes=[4], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @forward
%3 : f32[4] = aten::neg(self=%2) @forward
%4 : f32[4] = shoal::transfer(tensors=[%1], over=%[], kind="all_gather", axis="shard", dims=[0], outers=[1], units=[1], wholes=[4], before_dims=[], before_outers=[], before_units=[], before_wholes=[], small=[true], even=[true], bytes=[16]) @backward
%5 : f32[4] = aten::mul.Tensor(self=%3, other=%4) @backward
return output "y" %5
)");
  CHECK(gather_ahead(local, 1 << 20) == local);
}

TEST_CASE("packing: two small gradients are one message") {
  const Placed placed = placed_as("replicate=2", "[R]", "[R]", "[S(0)]");
  const ir::Graph local = pack(buckets(partition(placed, 0), 1 << 20), placed.mesh, 0);
  CHECK(story_of(local).ends_with("shoal::pack\nshoal::all_reduce\nshoal::unpack\n"));
}

TEST_CASE("a transfer says what its parcels are, alone and joined") {
  ir::Graph graph;
  const auto type = ir::contiguous(DType::Float32, {3, 4});
  const auto from = graph.add_source(ir::Role::Input, "x", type);
  const Journey journey = {.kind = sharding::Collective::AllToAll,
                           .axis = "tensor",
                           .combine = sharding::Combine::Max,
                           .phase = ir::Phase::Backward,
                           .module = "h.3"};
  const Parcel parcel = {.from = from,
                         .to = type,
                         .role = ir::Role::Gradient,
                         .shard = {.dim = 1, .outer = 2, .unit = 3},
                         .whole = 12,
                         .before = sharding::Shard{.dim = 0, .outer = 4, .unit = 5},
                         .whole_before = 7,
                         .over = std::nullopt,
                         .is_small = true,
                         .is_even = false};
  graph.add_node(transfer_of(journey, {parcel}, {99}), {type});
  const ir::Node& node = graph.nodes[0];
  CHECK(journey_in(node).kind == journey.kind);
  CHECK(journey_in(node).combine == journey.combine);
  CHECK(journey_in(node).module == "h.3");
  const auto check = [&](const Parcel& read) {
    CHECK(read.shard == parcel.shard);
    CHECK(read.whole == 12);
    CHECK(read.before == parcel.before);
    CHECK(read.whole_before == 7);
    CHECK(read.is_small);
    CHECK(!read.is_even);
  };
  check(parcels_in(graph, node)[0]);
  CHECK(bytes_in(node) == std::vector<std::int64_t>{99});
  const auto values = add_joined(graph, {&node, &node}, [](ir::ValueId value) { return value; }, graph);
  CHECK(values.size() == 2);
  check(parcels_in(graph, graph.nodes[1])[1]);
}

TEST_CASE("a placed step is text and back, and a layout that does not fit is found") {
  Placed placed = placed_as("replicate=2 shard=2", "[R, S(0)]", "[R, S(0)]", "[S(0), S(0)]");
  placed.nodes[0].in_parts = true;
  placed.again[2].push_back(placed.nodes[2]);
  CHECK(placed_from_text(to_text(placed)) == placed);
  CHECK_NOTHROW(verify(placed));
  Placed wrong = placed;
  wrong.nodes[1].in[0] = layout_from_text("[S(2), R]");
  CHECK(error_of([&] { verify(wrong); }).find("input 0 of aten::mm in \"second\"") != std::string::npos);
  wrong = placed;
  wrong.values.pop_back();
  CHECK(error_of([&] { verify(wrong); }).find("8 layouts for 9 values") != std::string::npos);
  wrong = placed;
  wrong.kept[0] = layout_from_text("[R]");
  CHECK(error_of([&] { verify(wrong); }).find("source \"a\"") != std::string::npos);
  CHECK(error_of([] { placed_from_text("placed"); }).find("no line 'placed") != std::string::npos);
}
