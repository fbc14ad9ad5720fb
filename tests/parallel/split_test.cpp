// SPDX-License-Identifier: Apache-2.0
// That strategies do split the work: equal results alone would be had by every rank doing all of it.
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "shoal/compile/compile.h"
#include "shoal/rewrite/report.h"
#include "shoal/train/trainer.h"
#include "tests/oracle/cases.h"

namespace split_test {

using namespace shoal;

static rewrite::Report report_of(const cases::ModelCase& model, const Parallelism& parallelism) {
  torch::manual_seed(9);
  const cases::Net net = model.make(0.25);
  Trainer trainer(net.module, net.loss, AdamW{}, {.clip_norm = 1});
  const ir::Graph graph = trainer.graph(model.batch(at::kFloat));
  const auto made = compile::compile(graph, parallelism.plan, parallelism.mesh, 0);
  return rewrite::report_of(made.whole.placed, made.local, 0);
}

TEST_CASE("on the axes that share the batch all work runs split, of every model") {
  for (const auto& model : cases::kModels)
    for (const auto& mesh : {mesh_of(2, 2, 1, 1), mesh_of(2, 1, 2, 1)}) {
      CAPTURE(std::string(model.name));
      CAPTURE(to_text(mesh));
      const auto report = report_of(model, {.mesh = mesh});
      CHECK(report.flops > 0);
      REQUIRE(report.shares.size() == 1);
      CHECK(report.shares[0].flops == 1);
      for (const auto& op : report.whole) CHECK(op.flops == 0);
      // A vector of one element is in no parts.
      if (report.shares[0].axis == "shard") CHECK(report.shares[0].parameter_bytes > 0.95);
    }
}

TEST_CASE("every op of every model has its work, or is said to have none") {
  for (const auto& model : cases::kModels)
    for (const auto& op : report_of(model, {.mesh = mesh_of(2, 2, 1, 1)}).unknown)
      FAIL_CHECK(model.name, ": ", op, " is in neither table of ir/flops.cpp");
}

static compile::Plan plan_in(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return compile::plan_from_text(text, path);
}

TEST_CASE("the plans that ship split at least 99 % of the work of GPT-2 and Llama") {
  for (const auto& model : cases::kModels)
    for (const std::string kind : {"tensor", "sequence"}) {
      const std::string name = model.name;
      if (name != "gpt2" && name != "llama") continue;
      CAPTURE(name);
      CAPTURE(kind);
      const auto plan = plan_in("recipes/plans/" + name + "_" + kind + ".plan");
      const auto report = report_of(model, {.mesh = mesh_of(2, 1, 1, 2), .plan = plan});
      REQUIRE(report.shares.size() == 1);
      CHECK(report.shares[0].flops >= 0.99);
      CHECK(report.shares[0].parameter_bytes > 0.5);
    }
}

}  // namespace split_test
