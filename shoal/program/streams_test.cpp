// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/streams.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

using namespace shoal;
using namespace shoal::program;

// The instructions of all segments with their waits and frees, types and arguments left out: "%4 = mm", "wait %4".
static std::string lines_of(const Program& program) {
  std::string lines;
  const auto add = [&](std::string_view word, const std::vector<Slot>& slots) {
    lines += word;
    for (const Slot slot : slots) lines += " %" + std::to_string(slot.index);
    lines += '\n';
  };
  for (const Segment& segment : program.segments)
    for (const Instruction& instruction : segment.instructions) {
      if (const auto* wait = std::get_if<Wait>(&instruction)) add("wait", wait->slots);
      if (const auto* free = std::get_if<Free>(&instruction)) add("free", free->slots);
      if (const auto* compute = std::get_if<Compute>(&instruction)) {
        lines += '%' + std::to_string(compute->outputs.at(0)->index) + " = " +
                 compute->op.substr(compute->op.find(':') + 2);
        if (compute->over) lines += " over %" + std::to_string(compute->over->index);
        lines += '\n';
      }
    }
  return lines;
}

namespace {

struct Step {
  ir::Graph graph;

  ir::ValueId source(const std::string& name, ir::Role role = ir::Role::Parameter) {
    return graph.add_source(role, name, ir::contiguous(DType::Float32, {8}));
  }
  ir::ValueId add(const std::string& op, std::vector<ir::Argument> arguments, std::int64_t elements = 8,
                  ir::Phase phase = ir::Phase::Backward) {
    const auto node = graph.add_node(
        {.op = op, .arguments = std::move(arguments), .outputs = {}, .phase = phase, .module = ""},
        {ir::contiguous(DType::Float32, {elements})});
    return *graph.at(node).outputs[0];
  }
  ir::ValueId compute(ir::ValueId self) { return add("aten::cumsum", {{"self", self}}); }
  ir::ValueId reduce(ir::ValueId self, const char* axis = "data") {
    return add("shoal::all_reduce", {{"self", self}, {"axis", std::string(axis)}, {"combine", "sum"}});
  }
  ir::ValueId gather(ir::ValueId self, const char* axis = "shard") {
    return add("shoal::all_gather", {{"self", self}, {"axis", std::string(axis)}}, 16);
  }
  void give(ir::ValueId value, const char* name = "y") { graph.add_result(ir::Role::Output, name, value); }
};

}  // namespace

TEST_CASE("a message is waited for where somebody looks at what it makes") {
  Step step;
  const auto w = step.source("w");
  const auto sum = step.reduce(step.compute(w));
  const auto beside = step.compute(w);
  step.give(step.add("aten::add.Tensor", {{"self", sum}, {"other", beside}}));
  CHECK(lines_of(lower(step.graph, Buffers::InUpdate, 1 << 20)) ==
        "%1 = cumsum\n%2 = all_reduce over %1\n%3 = cumsum\nwait %2\nfree %1\n%4 = add.Tensor over %2\n"
        "free %2 %3\n");
  CHECK(lines_of(lower(step.graph, Buffers::InUpdate, 0)) ==
        "%1 = cumsum\n%2 = all_reduce over %1\nwait %2\nfree %1\n%3 = cumsum\n%4 = add.Tensor over %2\n"
        "free %2 %3\n");
}

TEST_CASE("what nobody looks at is waited for at the end; what a message reads lives until then") {
  Step step;
  const auto w = step.source("w");
  const auto made = step.compute(w);
  step.give(step.gather(made));
  step.give(step.compute(w), "z");
  CHECK(lines_of(lower(step.graph, Buffers::InUpdate, 1 << 20)) ==
        "%1 = cumsum\n%2 = all_gather\n%3 = cumsum\nwait %2\nfree %1\n");
}

TEST_CASE("views are taken of what is under way, and what only moves it goes to its reader") {
  Step step;
  const auto w = step.source("w");
  const auto all = step.gather(step.compute(w));
  const auto view = step.add("aten::view", {{"self", all}, {"size", std::vector<std::int64_t>{16}}}, 16);
  const auto one =
      step.add("shoal::combine", {{"self", view}, {"count", std::int64_t{2}}, {"combine", "sum"}});
  const auto beside = step.compute(w);
  step.give(step.add("aten::add.Tensor", {{"self", one}, {"other", beside}}));
  CHECK(lines_of(lower(step.graph, Buffers::InUpdate, 1 << 20)) ==
        "%1 = cumsum\n%2 = all_gather\n%3 = view\n%5 = cumsum\nwait %2\nfree %1 %2\n%4 = combine\n"
        "free %3\n%6 = add.Tensor over %4\nfree %4 %5\n");
}

TEST_CASE("a message that reads what another brings waits for it on its own stream") {
  Step step;
  const auto w = step.source("w");
  const auto sum = step.reduce(step.reduce(step.compute(w), "shard"), "replicate");
  const auto beside = step.compute(w);
  step.give(step.add("aten::add.Tensor", {{"self", sum}, {"other", beside}}));
  const Program program = lower(step.graph, Buffers::InUpdate, 1 << 20);
  CHECK(lines_of(program) ==
        "%1 = cumsum\n%2 = all_reduce over %1\n%3 = all_reduce over %2\n%4 = cumsum\nwait %2 %3\nfree %1 %2\n"
        "%5 = add.Tensor over %3\nfree %3 %4\n");
  const Order order = order_of(program);
  CHECK(order.streams == std::vector<std::string>{"compute", "shard", "replicate"});
  std::string tasks;
  for (const auto& task : order.tasks) {
    tasks += order.streams[static_cast<std::size_t>(task.stream)] + ':';
    for (const int other : task.after) tasks += ' ' + std::to_string(other);
    tasks += '\n';
  }
  CHECK(tasks == "compute:\nshard: 0\nreplicate: 0 1\ncompute:\ncompute: 1 2\ncompute:\n");
}

TEST_CASE("who would write over what a message reads waits for it") {
  Step step;
  const auto w = step.source("w");
  const auto all = step.gather(w);
  const auto made = step.compute(w);
  const auto node = step.graph.add_node({.op = "shoal::sgd",
                                         .arguments = {{"parameters", ir::ValueList{w}},
                                                       {"gradients", ir::ValueList{made}},
                                                       {"momentum_buffers", ir::ValueList{}}},
                                         .outputs = {},
                                         .phase = ir::Phase::Update,
                                         .module = ""},
                                        {ir::contiguous(DType::Float32, {8})});
  step.graph.add_result(ir::Role::Parameter, "w", *step.graph.at(node).outputs[0]);
  step.give(all);
  CHECK(lines_of(lower(step.graph, Buffers::InUpdate, 1 << 20)) ==
        "%1 = all_gather\n%2 = cumsum\nwait %1\n%0 = sgd\nfree %2\n");
}

TEST_CASE("no more is under way than is said, but for one message") {
  Step step;
  const auto w = step.source("w");
  for (const char* name : {"a", "b", "c"}) step.give(step.reduce(step.compute(w)), name);
  CHECK(lines_of(lower(step.graph, Buffers::InUpdate, 64)) ==
        "%1 = cumsum\n%2 = all_reduce over %1\n%3 = cumsum\n%4 = all_reduce over %3\n%5 = cumsum\n"
        "%6 = all_reduce over %5\nwait %2\nfree %1\nwait %4 %6\nfree %3 %5\n");
  CHECK(lines_of(lower(step.graph, Buffers::InUpdate, 1)) ==
        "%1 = cumsum\n%2 = all_reduce over %1\n%3 = cumsum\n%4 = all_reduce over %3\nwait %2\nfree %1\n"
        "%5 = cumsum\n%6 = all_reduce over %5\nwait %4\nfree %3\nwait %6\nfree %5\n");
}

TEST_CASE("a program that touches what is under way is wrong, and told where") {
  const auto fault = [](const std::string& lines) {
    return fault_of(
        from_text("source %0 parameter \"w\" : f32[4]\nforward:\n%1 : f32[4] = aten::cumsum(self=%0)\n"
                  "%2 : f32[4] = shoal::all_reduce(self=%1, axis=\"data\", combine=\"sum\")\n" +
                  lines + "return output \"y\" %2\n"));
  };
  CHECK(fault("wait %2\nfree %1\n") == "");
  CHECK(fault("%3 : f32[4] = aten::view(self=%2, size=[4])\nwait %2\n") == "");
  CHECK(fault("%3 : f32[4] = aten::cumsum(self=%2)\nwait %2\n")
            .ends_with("it reads what is made by a message under way: 'wait %2' before it"));
  CHECK(fault("%3 : f32[4] = aten::relu(self=%1) over %1\nwait %2\n")
            .ends_with("it writes over what is made by a message under way: 'wait %2' before it"));
  CHECK(fault("free %1\nwait %2\n") ==
        "free %1: it frees what is read by a message under way: 'wait %2' before it");
  CHECK(fault("wait %2 %1\n") == "wait %2 %1: nothing that makes %1 is under way");
  CHECK(fault("") == "what makes %2 is under way at the end of forward; wait for it");
}

TEST_CASE("in random programs nobody looks at what is under way, and the text reads back") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t bound) {
      return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
    };
    Step step;
    std::vector<ir::ValueId> values = {step.source("v"), step.source("w")};
    for (int i = 0; i < 30; ++i) {
      const auto from = values[below(values.size())];
      switch (below(4)) {
        case 0: values.push_back(step.reduce(from, below(2) == 0 ? "shard" : "replicate")); break;
        case 1: values.push_back(step.add("aten::relu", {{"self", from}})); break;
        case 2: values.push_back(step.compute(from)); break;
        default:
          values.push_back(
              step.add("aten::add.Tensor", {{"self", from}, {"other", values[below(values.size())]}}));
      }
    }
    for (const char* name : {"a", "b"}) step.give(values[below(values.size())], name);
    const Program program =
        lower(step.graph, Buffers::InUpdate, below(4) == 0 ? 0 : std::int64_t{32} << below(6));
    CHECK(fault_of(program) == "");
    CHECK(from_text(to_text(program)) == program);
  }
}
