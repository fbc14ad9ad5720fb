// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/sparse_gradients.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/local_graph_test.h"

using namespace shoal;
using namespace shoal::rewrite;
using sharding::layout_from_text;

// Rows of a table of so many, looked up by 64 ids; tied to what makes the logits.
static std::string step(const std::string& rows, bool is_tied) {
  const std::string table = ": f32[" + rows + ", 32]";
  std::string text = "graph captured\n%0 = parameter \"w\" " + table + "\n";
  text += "%1 = input \"ids\" : i64[64]\n%2 = input \"g\" : f32[64, 32]\n%3 = input \"l\" : f32[64, " + rows +
          "]\n%4 : f32[" + rows + ", 64]{1," + rows + "} = aten::t(self=%3) @backward \"\"\n%5 " + table +
          " = aten::mm(self=%4, mat2=%2) @backward \"\"\n%6 " + table +
          " = aten::embedding_dense_backward(grad_output=%2, indices=%1, num_weights=" + rows +
          ", padding_idx=-1, scale_grad_by_freq=false) @backward \"\"\n";
  if (!is_tied) return text + "return gradient \"w\" %6\n";
  return text + "%7 " + table +
         " = aten::add.Tensor(self=%5, other=%6, alpha=1) @backward \"\"\nreturn gradient \"w\" %7\n";
}

static Placed placed_of(const std::string& rows, bool is_tied, const std::string& gradient = "[R]") {
  Pins pins;
  for (const char* name : {"ids", "g", "l"}) pins.inputs.emplace(name, layout_from_text("[S(0)]"));
  const auto whole = layout_from_text("[R]"), as = layout_from_text(gradient);
  pins.parameters.emplace(
      "w", ParameterPins{.kept = whole, .used = whole, .gradient = as, .updated = as, .summed = as});
  Placed placed = place(ir::from_text(step(rows, is_tied)), sharding::mesh_from_text("replicate=2"), pins);
  return with_sparse_gradients(std::move(placed));
}

// What ranks send, in the order in which they do.
static std::string messages(const Placed& placed) {
  const ir::Graph local = local_graph(placed, 1);
  ir::verify(local);
  std::string text;
  for (const auto& node : local.nodes)
    if (node.op == "shoal::all_reduce" || node.op == "shoal::all_gather" ||
        node.op == "shoal::reduce_scatter")
      text += node.op.substr(7) + " " + to_text(local.at(*node.outputs[0]).type) + "; ";
    else if (node.op == "aten::embedding_dense_backward")
      text += "rows; ";
  return text;
}

TEST_CASE("few rows of a large table are gathered, and added up by all ranks") {
  CHECK(messages(placed_of("32768", false)) == "all_gather f32[64, 32]; all_gather i64[64]; rows; ");
  CHECK(messages(placed_of("32768", false, "[S(0)]")) ==
        "all_gather f32[64, 32]; all_gather i64[64]; rows; ");
}

TEST_CASE("a tied table's other gradient goes first") {
  CHECK(messages(placed_of("32768", true)) ==
        "all_reduce f32[32768, 32]; all_gather f32[64, 32]; all_gather i64[64]; rows; ");
  CHECK(messages(placed_of("32768", true, "[S(0)]")) ==
        "reduce_scatter f32[16384, 32]; all_gather f32[64, 32]; all_gather i64[64]; rows; ");
}

TEST_CASE("what is not worth it stays a sum") {
  CHECK(messages(placed_of("4096", false)) ==
        "rows; all_reduce f32[4096, 32]; ");                          // less than 1 MiB is saved
  CHECK(messages(placed_of("32768", true, "[P(sum)]")) == "rows; ");  // more will come
}
