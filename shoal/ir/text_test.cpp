// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/text.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "shoal/base/error.h"

using namespace shoal;
using namespace shoal::ir;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

static std::string error_of(std::string_view text) {
  try {
    from_text(text);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::InvalidInput);
    return error.what();
  }
  return "no error";
}

namespace {

// Graphs of no meaning that use every construct of the text form.
class RandomGraph {
 public:
  explicit RandomGraph(unsigned seed) : random_(seed) {}

  Graph make() {
    graph_.form = pick({Form::Captured, Form::Local});
    const int num_sources = below(5);
    for (int i = 0; i < num_sources; ++i) source();
    const int num_nodes = below(12);
    for (int i = 0; i < num_nodes; ++i) {
      node();
      if (below(8) == 0) source();
    }
    for (auto& value : graph_.values)
      if (below(6) == 0) value.role = static_cast<Role>(below(10));
    const int num_results = graph_.values.empty() ? 0 : below(4);
    for (int i = 0; i < num_results; ++i) graph_.add_result(static_cast<Role>(below(10)), name(), value());
    return std::move(graph_);
  }

 private:
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }
  template <class T>
  T pick(std::initializer_list<T> items) {
    return items.begin()[below(static_cast<int>(items.size()))];
  }
  ValueId value() { return {static_cast<std::uint32_t>(below(static_cast<int>(graph_.values.size())))}; }
  std::int64_t whole() {
    return pick<std::int64_t>({0, 1, -1, below(1000), std::numeric_limits<std::int64_t>::min(),
                               std::numeric_limits<std::int64_t>::max()});
  }
  double real() {
    const double ordinary = std::bit_cast<double>((std::uint64_t(random_()) << 32) | random_());
    return pick({0.0, -0.0, 1.0, -3.0, 0.1, 1e22, 5e-324, 1e-5, kInfinity, -kInfinity,
                 std::numeric_limits<double>::quiet_NaN(), ordinary});
  }
  std::string name() {
    std::string text;
    const int length = below(6);
    for (int i = 0; i < length; ++i)
      text += pick({'a', 'Z', '_', '.', ':', '0', '"', '\\', '\n', '\x01', '\xff', ' ', '%'});
    return pick<std::string>({text, "h.0.attn", "none", "nan", "float32", "x1", ""});
  }
  TensorType type() {
    TensorType result{static_cast<DType>(below(12)), {}, {}};
    const int dims = below(4);
    for (int dim = 0; dim < dims; ++dim) result.shape.push_back(below(3));
    result.strides = contiguous_strides(result.shape);
    if (below(3) == 0)
      for (auto& stride : result.strides) stride = below(20);
    return result;
  }
  template <class T, class Make>
  std::vector<T> list(Make make) {
    std::vector<T> items;
    const int length = below(3);
    for (int i = 0; i < length; ++i) items.push_back(make());
    return items;
  }
  Attribute attribute() {
    const bool none = graph_.values.empty();
    switch (below(12)) {
      case 0: return none ? Attribute(std::monostate{}) : Attribute(value());
      case 1:
        return list<std::optional<ValueId>>(
            [&] { return none || below(3) == 0 ? std::nullopt : std::optional(value()); });
      case 2: return below(2) == 0;
      case 3: return whole();
      case 4: return real();
      case 5: return name();
      case 6: return static_cast<DType>(below(12));
      case 7: return Symbol{name()};
      case 8: return list<std::int64_t>([&] { return whole(); });
      case 9: return list<double>([&] { return real(); });
      case 10: return list<bool>([&] { return below(2) == 0; });
      default: return std::monostate{};
    }
  }
  void source() {
    const Role role = static_cast<Role>(below(6));
    graph_.add_source(role, name(), type(), role == Role::Constant ? name() : "");
  }
  void node() {
    Node node{.op = pick<std::string>({"aten::add.Tensor", "shoal::dropout", name()}),
              .arguments = list<Argument>([&] { return Argument{name(), attribute()}; }),
              .outputs = {},
              .phase = static_cast<Phase>(below(3)),
              .module = name()};
    graph_.add_node(std::move(node), list<std::optional<TensorType>>([&]() -> std::optional<TensorType> {
                      if (below(4) == 0) return std::nullopt;
                      return type();
                    }));
  }

  std::mt19937 random_;
  Graph graph_;
};

}  // namespace

TEST_CASE("text gives back the graph that it was made from") {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    const Graph graph = RandomGraph(seed).make();
    const std::string text = to_text(graph);
    CAPTURE(text);
    const Graph again = from_text(text);
    REQUIRE(again == graph);
    REQUIRE(to_text(again) == text);  // tells -0.0 from 0.0, which == does not
  }
}

TEST_CASE("text that was cut or changed anywhere is a graph or an error of its own, never a crash") {
  int num_errors = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::string text = to_text(RandomGraph(seed % 50).make());
    const auto place = random() % text.size();
    if (seed % 2 == 0)
      text.resize(place);
    else
      text[place] = "%[]{}()=,:@\"\\ _0a-\0"[random() % 19];
    if (error_of(text) != "no error") ++num_errors;
  }
  CHECK(num_errors > 1000);
}

TEST_CASE("a graph is printed as the header comment shows it") {
  static constexpr std::string_view kText =
      "graph captured\n"
      "%0 = parameter \"fc.weight\" : f32[4, 8]\n"
      "%1 = constant \"c0\" : i64[] fingerprint \"9e10\"\n"
      "%2 : f32[8, 4]{1,8} = aten::t(self=%0) @forward \"fc\"\n"
      "%3 : f32[0], _ = ns::op(x=%1, none=none, list=[%2, none], d=f32, s=strided, q=symbol\"f32\", b=true, "
      "i=1, "
      "f=1.0, e=1e-05, t=\"a\\\"b\", il=[1, 2], fl=[1.0, -inf], bl=[false], il0=[], fl0=float[], bl0=bool[], "
      "vl0=%[]) @backward\n"
      "() = ns::check(x=%3) @update \"h.0\"\n"
      "%4 loss : f32[] = aten::sum(self=%2, dtype=none) @forward\n"
      "return loss \"loss\" %4,\n"
      "       gradient \"fc.weight\" %2\n";
  CHECK(to_text(from_text(kText)) == kText);
  const Graph graph = from_text(kText);
  CHECK(graph.at(ValueId{4}).role == Role::Loss);
  CHECK(std::get<ValueList>(*find(graph.nodes[1], "list")) == ValueList{ValueId{2}, std::nullopt});
  CHECK(std::get<std::vector<double>>(*find(graph.nodes[1], "fl")) == std::vector{1.0, -kInfinity});
  CHECK(to_text(graph, graph.nodes[0]) == "%2 : f32[8, 4]{1,8} = aten::t(self=%0) @forward \"fc\"");
  CHECK(to_text(TensorType{DType::BFloat16, {2, 3}, {1, 2}}) == "bf16[2, 3]{1,2}");
}

TEST_CASE("a nan keeps its sign and payload") {
  for (const std::uint64_t bits :
       {0x7ff8000000000000U, 0xfff8000000000000U, 0x7ff8000000000123U, 0x7ff0000000000001U}) {
    Graph graph;
    graph.add_node(
        {.op = "f", .arguments = {{"x", std::bit_cast<double>(bits)}}, .outputs = {}, .module = ""}, {});
    const auto again = from_text(to_text(graph));
    CHECK(std::bit_cast<std::uint64_t>(std::get<double>(*find(again.nodes[0], "x"))) == bits);
  }
}

TEST_CASE("arguments are the same when the bits of their numbers are") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(Argument{"x", nan} == Argument{"x", nan});
  CHECK(Argument{"x", std::vector{1.0, nan}} == Argument{"x", std::vector{1.0, nan}});
  CHECK_FALSE(Argument{"x", nan} == Argument{"x", -nan});
  CHECK_FALSE(Argument{"x", 0.0} == Argument{"x", -0.0});
  CHECK_FALSE(Argument{"x", 1.0} == Argument{"x", std::int64_t{1}});
  CHECK_FALSE(Argument{"x", 1.0} == Argument{"y", 1.0});
}

TEST_CASE("space and line breaks do not matter") {
  CHECK(from_text("graph captured %0=input\"x\":f32[2]%1:f32[2]=f(x=%0)@forward return output\"y\"%1") ==
        from_text("graph captured\n%0 = input \"x\" : f32[2]\n%1 : f32[2]\n= f( x = %0 )\n@forward\nreturn "
                  "output \"y\" %1\n"));
}

TEST_CASE("an error names line, column, what was expected and what was found") {
  CHECK(error_of("") == "graph text, line 1, column 1: expected \"graph\", found the end of the text");
  CHECK(error_of("graph raw\nreturn") ==
        "graph text, line 1, column 7: expected a form: captured or local, found \"raw\"");
  CHECK(error_of("graph captured\n%0 = input \"x\" : f31[2]\nreturn") ==
        "graph text, line 2, column 18: expected a dtype such as f32, found \"f31\"");
  CHECK(error_of("graph captured\n%0 : f32[] = f(a=1 b=2) @forward\nreturn") ==
        "graph text, line 2, column 20: expected ')', found \"b\"");
  CHECK(error_of("graph captured\n%0 : f32[] = f(a=[1, 2.0]) @forward\nreturn") ==
        "graph text, line 2, column 22: expected an item of the same kind as the list's first: values, ints, "
        "doubles or "
        "bools, found \"2.0\"");
  CHECK(error_of("graph captured\n%0 : f32[] = f(a=99999999999999999999) @forward\nreturn") ==
        "graph text, line 2, column 18: expected an integer of 64 bits, found \"99999999999999999999\"");
  CHECK(error_of("graph captured\n%0 = input \"x\" : f32[256, 666666666666666666]\nreturn") ==
        "graph text, line 2, column 21: expected sizes whose product, in bytes, fits 64 bits, found more");
  CHECK(error_of("graph captured\n%0 = input \"x") ==
        "graph text, line 2, column 14: expected the closing '\"' of a string, found the end of the text");
  CHECK(error_of("graph captured\n%0 = input \"\\q\" : f32[]\nreturn") ==
        "graph text, line 2, column 14: expected one of \\\" \\\\ \\n \\t \\r \\xHH, found \"q\"");
  CHECK(error_of("graph captured\nreturn output \"y\" %0") ==
        "graph text, line 2, column 19: expected a value that the text defines, found %0");
  CHECK(error_of("graph captured\n%0 = input \"x\" : f32[]\n%0 = input \"y\" : f32[]\nreturn") ==
        "graph text, line 3, column 1: expected each value to be defined once, found %0 again");
  CHECK(error_of("graph captured\n%1 = input \"x\" : f32[]\nreturn") ==
        "graph text, line 2, column 1: expected %0 to be defined, since numbers have no gaps, found %1");
  CHECK(error_of("graph captured\nreturn\n%0 = input \"x\" : f32[]\n") ==
        "graph text, line 3, column 1: expected a role, found \"%\"");
  CHECK(error_of("graph captured\n%0 : f32[] = f(a=" + std::string(1000000, '['))
            .starts_with("graph text, line 2"));
}
