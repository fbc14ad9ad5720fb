// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/verify.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "shoal/ir/text.h"

using namespace shoal;
using namespace shoal::ir;

static std::string error_of(const Graph& graph, ErrorKind kind = ErrorKind::Internal) {
  try {
    verify(graph, kind);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "no error";
}

// A step with every phase: loss = sum(w), w := sgd(w, gradient).
static constexpr std::string_view kStep =
    "graph captured\n"
    "%0 = parameter \"w\" : f32[2]\n"
    "%1 = scalar \"lr\" : f64[]\n"
    "%2 loss : f32[] = aten::sum(self=%0, dtype=none) @forward \"m\"\n"
    "%3 : f32[2] = aten::expand(self=%2, size=[2], implicit=false) @backward \"m\"\n"
    "%4 : f32[2] = shoal::sgd(parameters=[%0], gradients=[%3], lr=%1) @update\n"
    "return loss \"loss\" %2, gradient \"w\" %3, parameter \"w\" %4";

static Graph step() { return from_text(kStep); }

// The step with one piece of its text replaced.
static std::string error_of(std::string_view piece, std::string_view by) {
  std::string text(kStep);
  const auto place = text.find(piece);
  REQUIRE(place != std::string::npos);
  return error_of(from_text(text.replace(place, piece.size(), by)));
}

TEST_CASE("a training step is a graph in every form") {
  for (const Form form : {Form::Captured, Form::Local}) {
    Graph graph = step();
    graph.form = form;
    CHECK(error_of(graph) == "no error");
  }
  CHECK(error_of(Graph{}) == "no error");
}

TEST_CASE("a person's graph gets an error for a person") {
  Graph graph = step();
  graph.results.push_back(graph.results[0]);
  CHECK(error_of(graph, ErrorKind::InvalidInput) == "verify: there are two results loss \"loss\"");
}

TEST_CASE("an id beyond the values is found wherever it stands") {
  Graph graph = step();
  graph.nodes[0].arguments[0].value = ValueId{5};
  CHECK(error_of(graph) == "verify: node 0, aten::sum of module \"m\", reads %5, but there are 5 values");
  graph = step();
  graph.nodes[0].outputs[0] = ValueId{9};
  CHECK(error_of(graph) == "verify: node 0, aten::sum of module \"m\", makes a value beyond the 5 there are");
  graph = step();
  graph.sources[1].value = ValueId{9};
  CHECK(error_of(graph) == "verify: source \"lr\" is %9, but there are 5 values");
  graph = step();
  graph.results[0].value = ValueId{9};
  CHECK(error_of(graph) == "verify: result loss \"loss\" is %9, but there are 5 values");
}

TEST_CASE("every value is made once, by the producer it names") {
  Graph graph = step();
  graph.values[2].producer = NodeId{1};
  CHECK(error_of(graph) == "verify: node 0, aten::sum of module \"m\", makes %2, whose producer is node 1");
  graph = step();
  graph.values[2].producer.reset();
  CHECK(error_of(graph) == "verify: node 0, aten::sum of module \"m\", makes %2, whose producer is none");
  graph = step();
  graph.values[1].producer = NodeId{0};
  CHECK(error_of(graph) == "verify: source \"lr\", %1, has a producer");
  graph = step();
  graph.sources[1].value = ValueId{0};
  CHECK(error_of(graph) == "verify: %0 is made 2 times");
  graph = step();
  graph.values.push_back(graph.values[0]);
  CHECK(error_of(graph) == "verify: %5 is made 0 times");
}

TEST_CASE("a value is made before it is read") {
  CHECK(error_of("sum(self=%0", "sum(self=%3") ==
        "verify: node 0, aten::sum of module \"m\", reads %3, which is made later, by node 1");
  CHECK(error_of("sum(self=%0", "sum(self=%2") ==
        "verify: node 0, aten::sum of module \"m\", reads %2, which is made later, by node 0");
}

TEST_CASE("a type has a stride a dim and nothing negative") {
  CHECK(error_of("\"w\" : f32[2]", "\"w\" : f32[2]{1,1}") == "verify: %0 has 1 dims and 2 strides");
  CHECK(error_of("\"lr\" : f64[]", "\"lr\" : f64[-1]") ==
        "verify: %1 is f64[-1]: sizes and strides are at least 0");
}

TEST_CASE("an argument's name is its own") {
  CHECK(error_of("dtype=none", "self=none") ==
        "verify: node 0, aten::sum of module \"m\", has two arguments named \"self\"");
}

TEST_CASE("a source has a role of sources and a name of its own in it") {
  CHECK(error_of("scalar \"lr\"", "loss \"lr\"") ==
        "verify: source \"lr\" has role loss, which only what a node makes can have");
  CHECK(error_of("scalar \"lr\"", "parameter \"w\"") == "verify: there are two sources parameter \"w\"");
  CHECK(error_of("scalar \"lr\"", "scalar \"w\"") == "no error");
  CHECK(error_of("\"lr\" : f64[]", "\"lr\" : f64[] fingerprint \"a\"") ==
        "verify: source scalar \"lr\" has a fingerprint, which only a constant can have");
}

TEST_CASE("a result has a role of results and is like the source that it replaces") {
  CHECK(error_of("loss \"loss\"", "scalar \"loss\"") ==
        "verify: result \"loss\" has role scalar, which no result can have");
  CHECK(error_of("gradient \"w\"", "gradient \"v\"") ==
        "verify: result gradient \"v\" has no source parameter \"v\"");
  CHECK(error_of("%4 : f32[2]", "%4 : f64[2]") ==
        "verify: result parameter \"w\" is f64[2], but its source is f32[2]");
  CHECK(error_of("%3 : f32[2]", "%3 : f32[3]") ==
        "verify: result gradient \"w\" is f32[3], but its source is f32[2]");
}

TEST_CASE("a forward node reads nothing of the backward pass, and neither reads the update") {
  CHECK(error_of("@forward \"m\"\n%3", "@backward \"m\"\n%3") == "no error");
  CHECK(error_of("@forward \"m\"\n%3", "@update \"m\"\n%3") ==
        "verify: node 1, aten::expand of module \"m\", is backward but reads %2, which is made in update by "
        "node 0");
}

TEST_CASE("what the update replaces is not read after it") {
  CHECK(error_of("@update\n", "@update %5 : f32[2] = aten::neg(self=%0) @update\n") ==
        "verify: node 3, aten::neg of module \"\", reads %0 after node 2 has written its new value over it");
  CHECK(error_of("@update\n", "@update %5 : f32[2] = aten::neg(self=%4) @update\n") == "no error");
}
