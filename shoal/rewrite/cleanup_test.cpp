// SPDX-License-Identifier: Apache-2.0
// Above 400 lines: one case for each rule; they share how a rule is run and timed.
#include "shoal/rewrite/cleanup.h"

#include <doctest/doctest.h>

#include <bit>
#include <ctime>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/reference_test.h"

using namespace shoal;
using namespace shoal::rewrite;
using ir::Graph;
using ir::Node;
using ir::ValueId;

static constexpr std::string_view kSources =
    "graph captured\n"
    "%0 = input \"x\" : f32[2, 3]\n"
    "%1 = input \"n\" : i64[2, 3]\n";

static Graph parsed(std::string_view nodes) {
  return ir::from_text(std::string(kSources) + std::string(nodes));
}

// What is left of nodes after a clean-up, without the sources.
static std::string cleaned(std::string_view nodes, Counts* counts = nullptr) {
  const Graph graph = cleanup(parsed(nodes), counts);
  ir::verify(graph);
  return ir::to_text(graph).substr(kSources.size());
}

namespace {
struct Picture {
  std::string rule;
  std::string before;
  std::string after;
};
}  // namespace

// The pictures in the first comment of a source file: a line with a rule's name, then lines "before | after";
// lines may be broken anywhere.
static std::vector<Picture> pictures_of(const std::string& file) {
  std::ifstream in("shoal/rewrite/" + file);
  REQUIRE(in);
  std::vector<Picture> pictures;
  std::string last;
  for (std::string line; std::getline(in, line) && line.starts_with("//");) {
    line.erase(0, line.find_first_not_of("/ "));
    const auto bar = line.find('|');
    if (bar == std::string::npos) {
      last = line;
      continue;
    }
    if (!last.empty()) pictures.push_back({std::exchange(last, ""), "", ""});
    pictures.back().before += line.substr(0, bar) + '\n';
    pictures.back().after += line.substr(bar + 1) + '\n';
  }
  return pictures;
}

TEST_CASE("each rule does what its picture shows") {
  std::set<std::string> missing;
  for (const Rule& rule : cleanup_rules()) missing.emplace(rule.name);
  missing.insert("dead code");
  missing.insert("common subexpression");
  for (const std::string file : {"cleanup.cpp", "common_subexpressions.cpp", "dead_code.cpp"})
    for (const Picture& picture : pictures_of(file)) {
      CAPTURE(picture.rule);
      Counts counts;
      CHECK(cleaned(picture.before, &counts) == ir::to_text(parsed(picture.after)).substr(kSources.size()));
      CHECK(counts[picture.rule] > 0);
      missing.erase(picture.rule);
    }
  CHECK(missing == std::set<std::string>{});
}

static void check_unchanged(std::string_view nodes) {
  CAPTURE(nodes);
  CHECK(cleaned(nodes) == ir::to_text(parsed(nodes)).substr(kSources.size()));
}

TEST_CASE("views, copies and conversions that change something stay") {
  check_unchanged("%2 : f32[3, 2]{1,3} = aten::t(self=%0) @forward return output \"y\" %2");
  check_unchanged(
      "%2 : f32[3, 2]{1,3} = aten::t(self=%0) @forward "
      "%3 : f32[3, 2] = aten::clone(self=%2, memory_format=contiguous) @forward "
      "%4 : f32[3, 2] = aten::neg(self=%3) @forward return output \"y\" %4");
  check_unchanged("%2 : f64[2, 3] = aten::_to_copy(self=%0, dtype=f64) @forward return output \"y\" %2");
  check_unchanged(
      "%2 : bf16[2, 3] = aten::_to_copy(self=%0, dtype=bf16) @forward "
      "%3 : f32[2, 3] = aten::_to_copy(self=%2, dtype=f32) @forward return output \"y\" %3");
  check_unchanged(
      "%2 : f32[2, 3] = aten::_to_copy(self=%1, dtype=f32) @forward "
      "%3 : i64[2, 3] = aten::_to_copy(self=%2, dtype=i64) @forward return output \"y\" %3");
}

TEST_CASE(
    "a copy to a named device stays, and where two devices are named so does every copy into a tensor") {
  check_unchanged(
      "%2 : f32[2, 3] = aten::_to_copy(self=%0, dtype=f32, device=cuda:0) @forward "
      "%3 : f32[2, 3] = aten::neg(self=%2) @forward return output \"y\" %3");
  check_unchanged(
      "%2 : f32[2, 3] = aten::zeros(size=[2, 3], dtype=f32, device=cuda:0) @forward "
      "%3 : f32[2, 3] = aten::ones(size=[2, 3], dtype=f32, device=cpu) @forward "
      "%4 : f32[2, 3] = aten::copy(self=%2, src=%3) @forward "
      "%5 : f32[2, 3] = aten::neg(self=%4) @forward return output \"y\" %5");
}

TEST_CASE(
    "zero is not added away from floats, for -0.0 + 0.0 is 0.0, nor one where it makes an int a float") {
  const std::string rest = " @forward %3 : f32[2, 3] = aten::neg(self=%2) @forward return output \"y\" %3";
  check_unchanged("%2 : f32[2, 3] = aten::add.Scalar(self=%0, other=0.0)" + rest);
  check_unchanged("%2 : f32[2, 3] = aten::mul.Scalar(self=%1, other=1.0)" + rest);
  check_unchanged(
      "%2 : f32[2, 3] = aten::zeros(size=[2, 3], dtype=f32) @forward "
      "%3 : f32[2, 3] = aten::add.Tensor(self=%2, other=%0) @forward "
      "%4 : f32[2, 3] = aten::neg(self=%3) @forward return output \"y\" %4");
}

TEST_CASE("a view of a view stays where what they view is not row-major") {
  check_unchanged(
      "%2 : f32[3, 2]{1,3} = aten::t(self=%0) @forward "
      "%3 : f32[3, 1, 2]{1,1,3} = aten::view(self=%2, size=[3, 1, 2]) @forward "
      "%4 : f32[3, 2, 1]{1,3,3} = aten::view(self=%3, size=[3, 2, 1]) @forward return output \"y\" %4");
}

TEST_CASE("a result does not become a source, for sources are written over") {
  check_unchanged("%2 : f32[2, 3] = aten::clone(self=%0) @forward return output \"y\" %2");
  check_unchanged(
      "%2 : f32[3] = aten::select.int(self=%0, dim=0, index=1) @forward "
      "%3 : f32[3] = aten::clone(self=%2) @forward return output \"y\" %3");
}

TEST_CASE("a write of a part is no write of the whole, and read only where it was written") {
  for (const std::string place :
       {"start=0, end=2, step=2", "start=1, end=9, step=2", "start=1, end=2, step=1"})
    check_unchanged(
        "%2 : f32[1, 3] = aten::ones(size=[1, 3], dtype=f32) @forward "
        "%3 : f32[2, 3] = aten::slice_scatter(self=%0, src=%2, dim=0, start=1, end=2, step=2) @forward "
        "%4 : f32[1, 3] = aten::slice.Tensor(self=%3, dim=0, " +
        place +
        ") @forward "
        "return output \"y\" %4");
}

TEST_CASE("the loss keeps its role when something stands for it") {
  CHECK(cleaned("%2 : f32[] = aten::sum(self=%0, dtype=none) @forward "
                "%3 loss : f32[] = aten::alias(self=%2) @forward return loss \"loss\" %3") ==
        "%2 loss : f32[] = aten::sum(self=%0, dtype=none) @forward\nreturn loss \"loss\" %2\n");
}

TEST_CASE("nodes that differ in the sign of a zero are not the same") {
  check_unchanged(
      "%2 : f32[2] = aten::full(size=[2], fill_value=0.0) @forward "
      "%3 : f32[2] = aten::full(size=[2], fill_value=-0.0) @forward "
      "return output \"y\" %2, output \"z\" %3");
}

TEST_CASE("backward does not keep what forward computed alive, but shares its views") {
  check_unchanged(
      "%2 : f32[2, 3] = aten::exp(self=%0) @forward "
      "%3 : f32[2, 3] = aten::exp(self=%0) @backward "
      "return output \"y\" %2, output \"z\" %3");
  CHECK(cleaned("%2 : f32[3, 2]{1,3} = aten::t(self=%0) @forward "
                "%3 : f32[3, 2]{1,3} = aten::t(self=%0) @backward "
                "return output \"y\" %2, output \"z\" %3") ==
        "%2 : f32[3, 2]{1,3} = aten::t(self=%0) @forward\nreturn output \"y\" %2,\n       output \"z\" %2\n");
}

// `make` twice, with the first one's last use before the second.
static int num_merged(const std::string& make, const std::string& size) {
  Counts counts;
  cleaned("%2 : f32" + size + " = " + make +
              " @forward %3 : f32[] = aten::sum(self=%2, dtype=none) @forward "
              "%4 : f32" +
              size + " = " + make +
              " @forward %5 : f32[] = aten::amax(self=%4) @forward "
              "return output \"y\" %3, output \"z\" %5",
          &counts);
  return counts["common subexpression"];
}

TEST_CASE("large values that died are made again rather than kept") {
  CHECK(num_merged("aten::ones(size=[8, 8])", "[8, 8]") == 1);
  CHECK(num_merged("aten::ones(size=[1000, 8])", "[1000, 8]") == 0);
}

TEST_CASE("large values are merged when their inputs, which wait for the duplicate, are as large") {
  static constexpr std::string_view kTwice =
      "%2 : f32[1000, 8] = aten::ones(size=[1000, 8]) @forward "
      "%3 : f32[1000, 8] = aten::exp(self=%2) @forward "
      "%4 : f32[] = aten::sum(self=%3, dtype=none) @forward "
      "%5 : f32[1000, 8] = aten::exp(self=%2) @forward "
      "%6 : f32[] = aten::amax(self=%5) @forward "
      "return output \"y\" %4, output \"z\" %6";
  Counts counts;
  cleaned(kTwice, &counts);
  CHECK(counts["common subexpression"] == 1);
  Counts with_output;  // now the input is kept anyway
  cleaned(std::string(kTwice) + ", output \"w\" %2", &with_output);
  CHECK(with_output["common subexpression"] == 0);
}

TEST_CASE("random nodes merge only if they are the same draw") {
  Counts counts;
  cleaned(
      "%2 : f32[2] = shoal::normal(size=[2], ordinal=0) @forward "
      "%3 : f32[2] = shoal::normal(size=[2], ordinal=1) @forward "
      "%4 : f32[2] = shoal::normal(size=[2], ordinal=0) @forward "
      "return output \"a\" %2, output \"b\" %3, output \"c\" %4",
      &counts);
  CHECK(counts["common subexpression"] == 1);
}

TEST_CASE("constants that nobody reads go, other sources and nodes without outputs stay") {
  CHECK(ir::to_text(cleanup(
            ir::from_text("graph captured %0 = constant \"c\" : f32[2] fingerprint \"a\" "
                          "%1 = parameter \"w\" : f32[2] () = aten::check(self=%1) @forward return"))) ==
        "graph captured\n%0 = parameter \"w\" : f32[2]\n() = aten::check(self=%0) @forward\nreturn\n");
}

namespace {

// Graphs that the reference can run, made of the ops that the rules look at; most nodes read the one before.
class RandomStep {
 public:
  explicit RandomStep(unsigned seed) : random_(seed) {}

  Graph make() {
    for (const auto& [name, dtype] :
         {std::pair("x", DType::Float32), {"y", DType::Float64}, {"n", DType::Int64}})
      add_source(name, ir::contiguous(dtype, {1 + below(3), 1 + below(3)}));
    while (graph_.nodes.size() < 40) add_node();
    for (int i = 0; i < 4; ++i) graph_.add_result(ir::Role::Output, concat("y", i), some_value());
    return std::move(graph_);
  }

 private:
  std::int64_t below(std::int64_t limit) {
    return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random_);
  }

  ValueId some_value() {
    const auto count = static_cast<std::int64_t>(graph_.values.size());
    return {static_cast<std::uint32_t>(below(2) == 0 ? count - 1 : below(count))};
  }

  void add_source(std::string name, ir::TensorType type) {
    const ValueId id = graph_.add_source(ir::Role::Input, std::move(name), type);
    values_.push_back(reference::make(graph_.at(id).type));
  }

  void add(std::string op, std::vector<ir::Argument> arguments) {
    Node node{.op = std::move(op),
              .arguments = std::move(arguments),
              .outputs = {},
              .phase = below(2) == 0 ? phase_ : (phase_ = below(30) == 0 ? ir::Phase::Backward : phase_),
              .module = ""};
    const auto made = reference::evaluate(node, values_);
    graph_.add_node(std::move(node), {made.type});
    values_.push_back(made);
  }

  // Another value of the same shape and, if wanted, dtype; or the value itself.
  ValueId like(ValueId wanted, std::optional<DType> dtype) {
    for (int i = 0; i < 10; ++i) {
      const ValueId other = some_value();
      const auto& type = graph_.at(other).type;
      if (type.shape == graph_.at(wanted).type.shape && (!dtype || type.dtype == *dtype)) return other;
    }
    return wanted;
  }

  void add_node() {
    const ValueId self = some_value();
    const ir::TensorType type = graph_.at(self).type;
    const auto dims = static_cast<std::int64_t>(type.shape.size());
    const std::int64_t dim = dims == 0 ? 0 : below(dims);
    const auto size = dims == 0 ? 0 : type.shape[static_cast<std::size_t>(dim)];
    const bool row_major = type.strides == ir::contiguous_strides(type.shape);
    switch (below(20)) {
      case 0: return add(below(2) == 0 ? "aten::alias" : "aten::detach", {{"self", self}});
      case 1: return dims == 2 ? add("aten::t", {{"self", self}}) : void();
      case 2:
        return dims > 0 ? add("aten::transpose.int", {{"self", self}, {"dim0", dim}, {"dim1", below(dims)}})
                        : void();
      case 3: return add_permute(self, dims);
      case 4: return row_major ? add_view(self, type) : void();
      case 5: return size == 1 ? add("aten::squeeze.dim", {{"self", self}, {"dim", dim}}) : void();
      case 6: return dims < 4 ? add("aten::unsqueeze", {{"self", self}, {"dim", dim}}) : void();
      case 7: return add_expand(self, type);
      case 8: return add("aten::clone", {{"self", self}});
      case 9: return add_conversion(self);
      case 10: return add("aten::copy", {{"self", self}, {"src", like(self, std::nullopt)}});
      case 11: return add("aten::neg", {{"self", self}});
      case 12: return add("aten::mul.Scalar", {{"self", self}, {"other", below(2)}});
      case 13: return add("aten::add.Scalar", {{"self", self}, {"other", below(2)}});
      case 14: return add("aten::add.Tensor", {{"self", self}, {"other", like(self, type.dtype)}});
      case 15: return add("aten::sum", {{"self", self}});
      case 16: return add("aten::zeros", {{"size", type.shape}, {"dtype", type.dtype}});
      case 17: return add("shoal::normal", {{"size", type.shape}, {"ordinal", below(2)}});
      case 18: return dims > 0 ? add_slice(self, dim, size) : void();
      default: return dims > 0 ? add_row(self, dim, size) : void();
    }
  }

  void add_permute(ValueId self, std::int64_t count) {
    std::vector<std::int64_t> dims;
    for (std::int64_t dim = 0; dim < count; ++dim) dims.push_back(dim);
    std::shuffle(dims.begin(), dims.end(), random_);
    add("aten::permute", {{"self", self}, {"dims", dims}});
  }

  void add_view(ValueId self, const ir::TensorType& type) {
    const std::vector<std::vector<std::int64_t>> shapes = {
        type.shape, {num_elements(type)}, {num_elements(type), 1}};
    add(below(2) == 0 ? "aten::view" : "aten::_unsafe_view", {{"self", self}, {"size", shapes[below(3)]}});
    if (below(2) == 0) add("aten::view", {{"self", last()}, {"size", shapes[below(3)]}});
  }

  void add_expand(ValueId self, const ir::TensorType& type) {
    auto shape = type.shape;
    for (auto& size : shape)
      if (size == 1 && below(3) == 0) size = 2;
    add("aten::expand", {{"self", self}, {"size", shape}});
  }

  void add_conversion(ValueId self) {
    const std::vector<DType> dtypes = {DType::Float32, DType::Float64, DType::Int64};
    add("aten::_to_copy", {{"self", self}, {"dtype", dtypes[below(3)]}});
    if (below(2) == 0) add("aten::_to_copy", {{"self", last()}, {"dtype", graph_.at(self).type.dtype}});
  }

  // Part of a dim, or all of it; sometimes negated and written back, and read again.
  void add_slice(ValueId self, std::int64_t dim, std::int64_t size) {
    const std::int64_t start = below(size);
    write_back(self, "slice.Tensor", "slice_scatter",
               {{"dim", dim}, {"start", below(2) == 0 ? 0 : start}, {"end", size}, {"step", 1 + below(2)}});
  }

  void add_row(ValueId self, std::int64_t dim, std::int64_t size) {
    write_back(self, "select.int", "select_scatter", {{"dim", dim}, {"index", below(size)}});
  }

  void write_back(ValueId self, const std::string& read, const std::string& write,
                  std::vector<ir::Argument> place) {
    const auto with = [&](std::vector<ir::Argument> first) {
      first.insert(first.end(), place.begin(), place.end());
      return first;
    };
    add("aten::" + read, with({{"self", self}}));
    if (below(2) == 0) return;
    add("aten::neg", {{"self", last()}});
    add("aten::" + write, with({{"self", self}, {"src", last()}}));
    if (below(2) == 0) add("aten::" + read, with({{"self", last()}}));
  }

  ValueId last() const { return {static_cast<std::uint32_t>(graph_.values.size() - 1)}; }

  std::mt19937 random_;
  Graph graph_;
  reference::Values values_;
  ir::Phase phase_ = ir::Phase::Forward;
};

}  // namespace

static bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  });
}

TEST_CASE("a clean-up keeps every bit of every result, on 1000 random graphs") {
  Counts counts;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    const Graph before = RandomStep(seed).make();
    const Graph after = cleanup(before, &counts);
    CAPTURE(ir::to_text(before));
    CAPTURE(ir::to_text(after));
    ir::verify(after);
    const auto wanted = reference::run(before);
    const auto got = reference::run(after);
    REQUIRE(got.size() == wanted.size());
    for (const auto& [name, bits] : wanted) REQUIRE(same_bits(got.at(name), bits));
    REQUIRE(cleanup(after) == after);
  }
  for (const Rule& rule : cleanup_rules()) {
    CAPTURE(rule.name);
    CHECK(counts[std::string(rule.name)] > 3);
  }
  CHECK(counts["common subexpression"] > 200);
}

TEST_CASE("a clean-up of 20,000 nodes takes less than a second of processor time, sanitizers included") {
  Graph graph = parsed("return");
  ValueId last{0};
  for (int i = 0; i < 5000; ++i) {
    const auto add = [&](const char* op, ir::TensorType type) {
      Node node{.op = op,
                .arguments = {{"self", last}, {"memory_format", std::monostate{}}},
                .outputs = {},
                .module = "transformer.h.3.attn"};
      last = *graph.at(graph.add_node(std::move(node), {std::move(type)})).outputs[0];
    };
    add("aten::t", {DType::Float32, {3, 2}, {1, 3}});
    add("aten::t", ir::contiguous(DType::Float32, {2, 3}));
    add("aten::clone", ir::contiguous(DType::Float32, {2, 3}));
    add("aten::exp", ir::contiguous(DType::Float32, {2, 3}));
  }
  graph.add_result(ir::Role::Output, "y", last);
  const std::clock_t begin = std::clock();
  const Graph after = cleanup(std::move(graph));
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  CHECK(after.nodes.size() == 5000);
  MESSAGE("20,000 nodes in ", seconds, " s");
  CHECK(seconds < 1);
}
