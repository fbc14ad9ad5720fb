// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/tables.h"

#include <doctest/doctest.h>

#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

using namespace shoal;
using rewrite::RowGradients;

static constexpr const char* kTwoLookups = R"(graph captured
%0 = parameter "emb.weight" : f32[1000, 4]
%1 = parameter "other" : f32[4, 1]
%2 = input "a" : i64[8]
%3 = input "b" : i64[8]
%4 : f32[8, 4] = aten::embedding(weight=%0, indices=%2, padding_idx=-1, scale_grad_by_freq=false, sparse=false) @forward "emb"
%5 : f32[8, 4] = aten::embedding(weight=%0, indices=%3, padding_idx=0, scale_grad_by_freq=false, sparse=false) @forward "emb"
%6 : f32[8, 4] = aten::mul.Tensor(self=%4, other=%5) @forward
%7 : f32[8, 4] = aten::mul.Tensor(self=%6, other=%5) @backward
%8 : f32[8, 4] = aten::mul.Tensor(self=%6, other=%4) @backward
%9 : f32[1000, 4] = aten::embedding_dense_backward(grad_output=%8, indices=%3, num_weights=1000, padding_idx=0, scale_grad_by_freq=false) @backward "emb"
%10 : f32[1000, 4] = aten::embedding_dense_backward(grad_output=%7, indices=%2, num_weights=1000, padding_idx=-1, scale_grad_by_freq=false) @backward "emb"
%11 : f32[1000, 4] = aten::add.Tensor(self=%9, other=%10, alpha=1) @backward
%12 : f32[] = aten::sum(self=%6, dtype=none) @forward
return loss "loss" %12, gradient "emb.weight" %11
)";

static ir::Graph graph_of(const std::string& text) {
  ir::Graph graph = ir::from_text(text);
  ir::verify(graph);
  return graph;
}

TEST_CASE("lookups are pulls, and their gradients one push") {
  const ir::Graph made = rewrite::tables(graph_of(kTwoLookups), {{"emb.weight"}}, RowGradients::Push);
  ir::verify(made);
  CHECK(ir::to_text(made) == R"(graph captured
%0 = parameter "emb.weight" : f32[0]
%1 = parameter "other" : f32[4, 1]
%2 = input "a" : i64[8]
%3 = input "b" : i64[8]
%13 = scalar "rows.step" : i64[]
%14 = scalar "rows.rate" : f64[]
%4 : f32[8, 4], %5 : i32[8] = shoal::pull_rows(table=%0, ids=%2, padding_idx=-1) @forward "emb"
%6 : f32[8, 4], %7 : i32[8] = shoal::pull_rows(table=%0, ids=%3, padding_idx=0) @forward "emb"
%8 : f32[8, 4] = aten::mul.Tensor(self=%4, other=%6) @forward
%9 : f32[8, 4] = aten::mul.Tensor(self=%8, other=%6) @backward
%10 : f32[8, 4] = aten::mul.Tensor(self=%8, other=%4) @backward
%11 : f32[] = aten::sum(self=%8, dtype=none) @forward
%12 : f64[] = aten::full(size=[], fill_value=1.0, dtype=f64, layout=none, device=none, pin_memory=none) @update
() = shoal::push_rows(tables=[%0], of=[0, 0], ids=[%3, %2], places=[%7, %5], gradients=[%10, %9], counts=[%12, %12], clicks=[none, none], step=%13, rate=%14) @update
return loss "loss" %11
)");
}

TEST_CASE("of micro-batches they are added up, and pushed by the graph of their sums") {
  const ir::Graph made = rewrite::tables(graph_of(kTwoLookups), {{"emb.weight"}}, RowGradients::AddUp);
  ir::verify(made);
  CHECK(ir::to_text(made).find("shoal::add_up_rows(tables=[%0]") != std::string::npos);
  ir::Graph sums;
  rewrite::append_push_of_sums(sums);
  ir::verify(sums);
  CHECK(ir::to_text(sums) == R"(graph captured
%0 = scalar "rows.divisor" : f64[]
%1 = scalar "rows.step" : i64[]
%2 = scalar "rows.rate" : f64[]
() = shoal::push_sums(divisor=%0, step=%1, rate=%2) @update
return
)");
}

TEST_CASE("clicks are an input of the samples that the ids are of") {
  const std::string lookup = R"(graph captured
%0 = parameter "emb.weight" : f32[1000, 4]
%1 = input "ids" : i64[8, 3]
%2 = input "clicked" : i64[8, 1]
%3 = input "weights" : f32[8, 3]
%4 : f32[8, 3, 4] = aten::embedding(weight=%0, indices=%1, padding_idx=-1, scale_grad_by_freq=false, sparse=false) @forward "emb"
%5 : f32[] = aten::sum(self=%4, dtype=none) @forward
%6 : f32[1000, 4] = aten::embedding_dense_backward(grad_output=%4, indices=%1, num_weights=1000, padding_idx=-1, scale_grad_by_freq=false) @backward "emb"
return loss "loss" %5, gradient "emb.weight" %6
)";
  const auto with = [&](const char* clicks, RowGradients then = RowGradients::Push) {
    return ir::to_text(rewrite::tables(graph_of(lookup), {{"emb.weight", clicks}}, then));
  };
  CHECK(with("clicked").find("clicks=[%2]") != std::string::npos);
  CHECK(with("clicked", RowGradients::AddUp).find("clicks=[%2]") != std::string::npos);
  with("what", RowGradients::None);  // nothing counts
  CHECK(error_of([&] { with("what"); }) ==
        "tables: clicks of emb.weight are input \"what\", which the step does not read; it reads ids, "
        "clicked, weights");
  CHECK(error_of([&] { with("weights"); }) ==
        "tables: clicks of emb.weight are input weights of f32[8, 3], and its ids are i64[8, 3]; wanted "
        "[samples] "
        "of each, and ids of [samples], [samples, …] or a bag for each sample");
}

// The error after `line` was put in place of the line that begins with `begin`.
static std::string refusal(const std::string& begin, const std::string& line) {
  std::string text = kTwoLookups;
  const std::size_t at = text.find("\n" + begin) + 1;
  text.replace(at, text.find('\n', at) - at, line);
  return error_of([&] { rewrite::tables(graph_of(text), {{"emb.weight"}}, RowGradients::Push); });
}

TEST_CASE("what else reads a table or its gradient is refused by op and module") {
  const std::string remedy = ". Remedy: leave it out of the tables, or look its rows up by embedding alone";
  CHECK(refusal("return", "return loss \"loss\" %12, output \"rows\" %0") ==
        "tables: parameter emb.weight is given back by the model as it is, and its rows are in a table. "
        "Remedy: "
        "Trainer::rows()");
  CHECK(
      refusal("%11", "%11 : f32[1000, 4] = aten::mul.Tensor(self=%9, other=%10) @backward \"emb\"") ==
      "tables: the gradient of emb.weight is made by aten::mul.Tensor in module \"emb\" (a hook?), and what "
      "goes to its servers is the sum of its rows' gradients" +
          remedy);
  CHECK(refusal("%11", "%11 : f32[1000, 4] = aten::add.Tensor(self=%9, other=%10, alpha=2) @backward \"emb\"")
            .find("is made by aten::add.Tensor") != std::string::npos);
  CHECK(refusal("%12", "%12 : f32[] = aten::sum(self=%9, dtype=none) @backward \"penalty\"") ==
        "tables: the gradient of emb.weight is read by aten::sum in module \"penalty\", and goes to its "
        "servers row by row" +
            remedy);
  CHECK(refusal("%4",
                "%4 : f32[8, 4] = aten::embedding(weight=%0, indices=%2, padding_idx=-1, "
                "scale_grad_by_freq=true, sparse=false) @forward \"emb\"")
            .find("scales gradients by how often an id is in the batch") != std::string::npos);
  CHECK(refusal("return", "return loss \"loss\" %12, parameter \"emb.weight\" %11") ==
        "tables: parameter emb.weight is written to by the model itself (max_norm of an embedding does so)" +
            remedy);
}
