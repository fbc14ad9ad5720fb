// SPDX-License-Identifier: Apache-2.0
// What a rank does that has a part of a random tensor, of a vocabulary, of the classes.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>

#include "examples.h"
#include "shoal/aten/random.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/sharding/rules.h"

namespace parts_test {

using namespace shoal;
using namespace shoal::sharding;
using at::Tensor;

static Tensor in_box(Tensor whole, const Box& box) {
  for (std::size_t dim = 0; dim < box.dims.size(); ++dim) {
    const auto at = static_cast<std::int64_t>(dim);
    std::vector<Tensor> pieces = {whole.narrow(at, 0, 0)};
    for (const Range& range : box.dims[dim])
      pieces.push_back(whole.narrow(at, range.begin, range.end - range.begin));
    whole = at::cat(pieces, at);
  }
  return whole;
}

static const char* const kDraws[] = {
    "shoal::bernoulli(p=0.3, shape=[5, 12, 70], dtype=bool, seed=%0, step=%1, ordinal=3)",
    "shoal::bernoulli_tensor(p=%2, dtype=f32, seed=%0, step=%1, ordinal=3)",
    "shoal::exponential(lambda=2.0, shape=[5, 12, 70], dtype=f64, seed=%0, step=%1, ordinal=3)",
    "shoal::normal(mean=1.0, std=2.0, shape=[5, 12, 70], dtype=bf16, seed=%0, step=%1, ordinal=3)",
    "shoal::randint(low=0, high=1000, shape=[5, 12, 70], dtype=i64, seed=%0, step=%1, ordinal=3)",
    "shoal::uniform(from=0.0, to=1.0, shape=[5, 12, 70], dtype=f32, seed=%0, step=%1, ordinal=3)",
};

TEST_CASE("a rank draws its part of a random tensor, bit for bit, in every layout") {
  const std::pair<const char*, const char*> layouts[] = {
      {"x=2", "[S(0)]"},
      {"x=3", "[S(1)]"},
      {"x=7", "[S(0)]"},  // some are empty
      {"x=4", "[S(2)]"},
      {"x=3", "[S(2, outer=7, unit=2)]"},
      {"x=2 y=3", "[S(0), S(0)]"},
      {"x=2 y=3", "[S(2), S(0)]"},
      {"x=2 y=2", "[S(1, outer=3), S(2, outer=5, unit=7)]"},
      {"x=2", "[R]"},
  };
  const Shape shape = {5, 12, 70};
  const Tensor seed = at::scalar_tensor(77, at::kLong), step = at::scalar_tensor(5, at::kLong);
  const Tensor chances = at::rand(shape);
  for (const char* const draw : kDraws) {
    const bool has_chances = std::string(draw).find("%2") != std::string::npos;
    const ir::Graph graph = [&] {
      ir::Graph made = ir::from_text(concat(
          "graph captured\n%0 = scalar \"seed\" : i64[]\n%1 = scalar \"step\" : i64[]\n",
          has_chances ? "%2 = input \"p\" : f32[5, 12, 70]\n" : "", "() = ", draw, " @forward\nreturn\n"));
      ir::Node node = std::exchange(made.nodes, {}).at(0);
      const DType dtype = std::get<DType>(*ir::find(node, "dtype"));
      made.add_node(std::move(node), {ir::contiguous(dtype, shape)});
      return made;
    }();
    const ir::Node& node = graph.nodes[0];
    std::vector<Tensor> in = {seed, step};
    if (has_chances) in.insert(in.begin(), chances);
    const Tensor whole = run(graph, node, in).value().at(0).value();
    for (const auto& [mesh_text, layout_text] : layouts) {
      CAPTURE(draw);
      CAPTURE(layout_text);
      const Mesh mesh = mesh_from_text(mesh_text);
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const Box box = box_of(mesh, layout_from_text(layout_text), shape, rank);
        std::vector<Box> boxes(in.size());
        if (has_chances) {
          boxes[0] = box;
          in[0] = in_box(chances, box).contiguous();
        }
        const auto made = run(graph, localized(graph, node, boxes, {box}, false), in);
        REQUIRE(made);
        CHECK(at::equal(made->at(0).value(), in_box(whole, box)));
      }
    }
  }
}

static std::string stretches(at::IntArrayRef whole, at::IntArrayRef box) {
  std::string text;
  for (const auto& [start, size] : aten::stretches_of(whole, box)) text += concat(start, "+", size, " ");
  return text;
}

TEST_CASE("a part of whole rows is one stretch of a random tensor") {
  CHECK(stretches({5, 12, 70}, {1, 2, 4, 1, 0, 12, 1, 0, 70}) == "1680+1680 ");
  CHECK(stretches({2, 4}, {1, 0, 2, 2, 0, 1, 3, 4}) == "0+1 3+2 7+1 ");
  CHECK(stretches({2, 4}, {0, 1, 0, 4}) == "");
  CHECK_THROWS_WITH_AS(stretches({2, 4}, {1, 0, 3, 1, 0, 4}), "random: a box has 0 to 3 of a dim of 2",
                       Error);
}

TEST_CASE("vocabulary and classes in parts give the whole in every dtype") {
  int num_proved = 0;
  for (const auto& [dtype, bound] : {std::pair(at::kFloat, 1e-5), {at::kBFloat16, 2e-2}})
    for (const Case& example : examples())
      for (const Strategy& strategy : strategies(*example.graph, *example.node)) {
        if (!strategy.in_parts) continue;
        std::vector<Tensor> in = example.in;
        for (Tensor& tensor : in)
          if (tensor.is_floating_point()) tensor = tensor.to(dtype);
        const Tensor whole = run(*example.graph, *example.node, in).value().at(0).value();
        const Mesh mesh = {{{"x", 3}}};
        Tensor sum = at::zeros_like(whole, at::kDouble);
        for (int rank = 0; rank < 3; ++rank) {
          std::vector<Box> boxes;
          std::vector<Tensor> local;
          for (std::size_t i = 0; i < in.size(); ++i) {
            boxes.push_back(box_of(mesh, {{strategy.in[i]}}, in[i].sizes().vec(), rank));
            local.push_back(in_box(in[i], boxes.back()).contiguous());
          }
          std::vector<std::optional<Box>> out;
          for (std::size_t i = 0; i < example.out.size(); ++i)
            out.emplace_back(box_of(mesh, {{strategy.out[i]}}, example.out[i]->sizes().vec(), rank));
          const auto node = localized(*example.graph, *example.node, boxes, out, true);
          const Tensor part = run(*example.graph, node, local).value().at(0).value();
          CHECK((part.scalar_type() == dtype));
          if (const auto* shard = std::get_if<Shard>(&strategy.out[0])) {
            const Range range = out[0]->dims[static_cast<std::size_t>(shard->dim)].at(0);
            sum.narrow(shard->dim, range.begin, range.end - range.begin) += part;
          } else {
            sum += part;
          }
        }
        CAPTURE(example.text());
        CHECK((sum - whole).abs().max().item<double>() <= bound * (whole.abs().max().item<double>() + 1));
        ++num_proved;
      }
  CHECK(num_proved >= 2 * 6);
}

static const ir::Graph& lookup() {
  static const ir::Graph graph = ir::from_text(R"(graph captured
%0 = parameter "w" : f64[9, 4]
%1 = input "i" : i64[3]
%2 : f64[3, 4] = aten::embedding(weight=%0, indices=%1, padding_idx=-1, scale_grad_by_freq=false, sparse=false) @forward "wte"
return output "y" %2
)");
  return graph;
}

TEST_CASE("an index that no rank has is an error on every rank") {
  const Mesh mesh = {{{"x", 2}}};
  const ir::Graph& graph = lookup();
  for (int rank = 0; rank < 2; ++rank) {
    const Box rows = box_of(mesh, {{Shard{}}}, {9, 4}, rank);
    const ir::Node node = localized(graph, graph.nodes[0], {rows, {}}, {Box{}}, true);
    const Tensor weight = at::rand(rows.shape(), at::kDouble);
    CHECK(run(graph, node, {weight, at::tensor({0, 8, 4}, at::kLong)}));
    CHECK_FALSE(run(graph, node, {weight, at::tensor({0, 9, 4}, at::kLong)}));
  }
}

TEST_CASE("a vocabulary in several pieces is refused") {
  const Mesh mesh = {{{"x", 2}}};
  const ir::Graph& graph = lookup();
  const Box rows = box_of(mesh, {{Shard{.outer = 3}}}, {9, 4}, 0);
  CHECK_THROWS_WITH_AS(
      localized(graph, graph.nodes[0], {rows, {}}, {Box{}}, true),
      "sharding: aten::embedding of module 'wte' got a part in 3 pieces, wanted one: cut its "
      "vocabulary or classes with outer=1",
      Error);
}

}  // namespace parts_test
