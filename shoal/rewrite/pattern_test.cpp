// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/pattern.h"

#include <doctest/doctest.h>

#include <array>
#include <string>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

using namespace shoal;
using namespace shoal::rewrite;

static constexpr std::string_view kSource = "graph captured\n%0 = input \"x\" : f32[2]\n";

static std::string applied(const Rule& rule, std::string_view nodes, Counts counts = {}) {
  const auto graph =
      apply_rules(ir::from_text(std::string(kSource) + std::string(nodes)), {&rule, 1}, counts);
  ir::verify(graph);
  return ir::to_text(graph).substr(kSource.size());
}

static constexpr std::string_view kTwoNegs =
    "%1 : f32[2] = aten::neg(self=%0) @forward\n"
    "%2 : f32[2] = aten::neg(self=%1) @backward \"m\"\n"
    "%3 : f32[2] = aten::exp(self=%2, n=2) @backward\n"
    "return output \"y\" %3\n";

TEST_CASE("a bound value stands for the root") {
  CHECK(applied({"n", "aten::neg(self=aten::neg(self=x))", "x"}, kTwoNegs).find("exp(self=%0, n=2)") !=
        std::string::npos);
}

TEST_CASE("a replacement by an op keeps the root's type, phase and module, and binds any argument") {
  CHECK(applied({"n", "aten::neg(self=aten::neg(self=x))", "aten::pos(self=x, y=x)"}, kTwoNegs)
            .find("%2 : f32[2] = aten::pos(self=%0, y=%0) @backward \"m\"\n") != std::string::npos);
  CHECK(applied({"e", "aten::exp(n=k, self=x, m=other)", "aten::pow(self=x, k=k, m=other)"}, kTwoNegs)
            .find("%3 : f32[2] = aten::pow(self=%2, k=2, m=none) @backward\n") != std::string::npos);
}

TEST_CASE("either of several ops fits, and no other") {
  CHECK(applied({"n", "aten::exp(self=aten::exp|aten::neg(self=x))", "aten::f(self=x)"}, kTwoNegs)
            .find("aten::f(self=%1)") != std::string::npos);
  CHECK(applied({"n", "aten::exp(self=aten::exp|aten::abs(self=x))", "aten::f(self=x)"}, kTwoNegs) ==
        kTwoNegs);
}

TEST_CASE("a guard is asked, with the types of what is bound") {
  const auto same = [](const Match& match) {
    return match.type_of("x") == match.type() && match.root().op == "aten::exp";
  };
  const auto other = [](const Match& match) { return match.type_of("x") != match.type(); };
  CHECK(applied({"n", "aten::exp(self=x)", "aten::f(self=x)", same}, kTwoNegs) != kTwoNegs);
  CHECK(applied({"n", "aten::exp(self=x)", "aten::f(self=x)", other}, kTwoNegs) == kTwoNegs);
}

TEST_CASE("a value does not stand for a value of another type") {
  static constexpr std::string_view kSum =
      "%1 : f32[] = aten::sum(self=%0) @forward\n%2 : f32[] = aten::neg(self=%1) @forward\nreturn output "
      "\"y\" %2\n";
  CHECK(applied({"s", "aten::sum(self=x)", "x"}, kSum) == kSum);
}

TEST_CASE("an output of several is no match") {
  static constexpr std::string_view kTwo =
      "%1 : f32[2], %2 : f32[2] = aten::two(self=%0) @forward\n%3 : f32[2] = aten::neg(self=%2) @forward\n"
      "return output \"y\" %3\n";
  CHECK(applied({"n", "aten::neg(self=aten::two(self=x))", "aten::f(self=x)"}, kTwo) == kTwo);
}

TEST_CASE("a rule that is malformed or endless says so") {
  CHECK_THROWS_WITH_AS(applied({"n", "aten::neg(self x)", "x"}, kTwoNegs),
                       "rewrite: the pattern aten::neg(self x) lacks '=' after self", Error);
  CHECK_THROWS_WITH_AS(applied({"n", "aten::neg(self=x", "x"}, kTwoNegs),
                       "rewrite: the pattern aten::neg(self=x lacks a ')'", Error);
  CHECK_THROWS_WITH_AS(applied({"n", "aten::neg(self=x)", "y"}, kTwoNegs),
                       "rewrite: a rule asks for y, which its pattern does not bind", Error);
  CHECK_THROWS_WITH_AS(applied({"n", "aten::neg(self=x)", "aten::neg(self=x)"}, kTwoNegs),
                       "rewrite: the rules for aten::neg come to no end", Error);
}
