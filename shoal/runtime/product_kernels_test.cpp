// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/product_kernels.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "shoal/aten/types.h"
#include "shoal/runtime/allocator.h"
#include "shoal/runtime/executor.h"

namespace product_kernels_test {

using namespace shoal;
using namespace shoal::runtime;
using ir::Graph;
using ir::Role;

static at::Tensor run(const std::string& op, std::vector<std::pair<std::string, at::Tensor>> inputs,
                      std::vector<std::int64_t> shape) {
  Graph graph;
  std::vector<ir::Argument> arguments;
  for (const auto& [name, tensor] : inputs)
    arguments.push_back({name, graph.add_source(Role::Input, name, aten::type_of(tensor))});
  const auto made = ir::contiguous(aten::type_of(inputs.front().second).dtype, std::move(shape));
  const auto node = graph.add_node({.op = op, .arguments = std::move(arguments)}, {made});
  graph.add_result(Role::Output, "y", graph.at(node).outputs.front().value());
  Executor executor(program::lower(graph));
  for (const auto& [name, tensor] : inputs) executor.bind(Role::Input, name, tensor);
  executor.run_gradients();
  return executor.result(Role::Output, "y").clone();
}

static void check_close(const at::Tensor& ours, const at::Tensor& exact) {
  CHECK(ours.is_contiguous());
  CHECK((ours.to(at::kDouble) - exact).abs().max().item<double>() < 1e-4 * exact.abs().max().item<double>());
}

TEST_CASE("products are right by either library, however matrices lie") {
  at::manual_seed(1);
  for (const auto& [rows, inner, columns] :
       {std::array<std::int64_t, 3>{256, 256, 512}, {300, 257, 259}, {4, 300, 20000}, {3, 2, 5}}) {
    CAPTURE(rows);
    const auto a = at::randn({rows, inner}), b = at::randn({inner, columns}), bias = at::randn({columns});
    const auto added = at::randn({rows, columns});
    const auto exact = a.to(at::kDouble).mm(b.to(at::kDouble));
    const auto lies_otherwise = [](const at::Tensor& matrix) { return matrix.t().contiguous().t(); };
    const at::Tensor apart = at::stack({a, a}, 2).select(2, 0);  // no dim's elements lie together
    for (const auto& left : {a, lies_otherwise(a), apart})
      for (const auto& right : {b, lies_otherwise(b)}) {
        check_close(run("aten::mm", {{"self", left}, {"mat2", right}}, {rows, columns}), exact);
        check_close(run("aten::addmm", {{"self", bias}, {"mat1", left}, {"mat2", right}}, {rows, columns}),
                    exact + bias);
        check_close(run("aten::addmm", {{"self", added}, {"mat1", left}, {"mat2", right}}, {rows, columns}),
                    exact + added);
        at::Tensor product = at::empty({rows, columns});
        multiply(left, right, product);
        check_close(product, exact);
      }
  }
}

TEST_CASE("small products, thin ones and other types stay with ATen") {
  CHECK_FALSE(is_faster_by_onednn(16, 32, 128));
  CHECK_FALSE(is_faster_by_onednn(1, 4096, 16384));
  const auto a = at::randn({256, 256}, at::kDouble), b = at::randn({256, 512}, at::kDouble);
  CHECK(at::equal(run("aten::mm", {{"self", a}, {"mat2", b}}, {256, 512}), a.mm(b)));
  at::Tensor product = at::empty({256, 512}, at::kDouble);
  multiply(a, b, product);
  CHECK(at::equal(product, a.mm(b)));
}

TEST_CASE("who turns oneDNN off has ATen's bits, from a program that is there already too") {
  const auto a = at::randn({256, 512}), b = at::randn({512, 512}), bias = at::randn({512});
  const auto exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  Graph graph;
  std::vector<ir::Argument> arguments;
  for (const auto& [name, tensor] : {std::pair("self", bias), std::pair("mat1", a), std::pair("mat2", b)})
    arguments.push_back({name, graph.add_source(Role::Input, name, aten::type_of(tensor))});
  const auto node = graph.add_node({.op = "aten::addmm", .arguments = arguments}, {aten::type_of(a)});
  graph.add_result(Role::Output, "y", graph.at(node).outputs.front().value());
  Executor executor(program::lower(graph));
  executor.bind(Role::Input, "self", bias);
  executor.bind(Role::Input, "mat1", a);
  executor.bind(Role::Input, "mat2", b);
  executor.run_gradients();
  check_close(executor.result(Role::Output, "y"), exact + bias);
  at::globalContext().setUserEnabledMkldnn(false);
  executor.run_gradients();
  const bool is_atens = at::equal(executor.result(Role::Output, "y"), at::addmm(bias, a, b));
  at::Tensor product = at::empty({256, 512});
  multiply(a, b, product);
  const bool is_mm = at::equal(product, a.mm(b));
  at::globalContext().setUserEnabledMkldnn(true);
  CHECK(is_atens);
  CHECK(is_mm);
}

TEST_CASE("what a product has inside is not counted") {
  install_allocator();
  const auto a = at::randn({512, 512}), b = at::randn({512, 2048});
  at::Tensor product = at::empty({512, 2048});
  for (const auto& left : {a, a.t()}) {
    reset_peak();
    multiply(left, b, product);
    CHECK(memory_counts().peak_bytes == memory_counts().live_bytes);
  }
  const std::int64_t before = memory_counts().live_bytes;
  {
    const at::Tensor other = at::empty({1000});
  }
  CHECK(memory_counts().live_bytes == before);
}

}  // namespace product_kernels_test
