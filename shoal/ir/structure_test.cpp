// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/structure.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/ir/text.h"

using namespace shoal;
using namespace shoal::ir;

// Forward of so many tokens.
static std::string text_of(int length, const std::string& scale = "0.5", const std::string& last = "mean") {
  const std::string n = std::to_string(length);
  return "graph captured\n"
         "%0 = parameter \"w\" : f32[4]\n"
         "%1 = input \"x\" : f32[" +
         n +
         ", 4]\n"
         "%2 = constant \"c0\" : f32[" +
         n + "] fingerprint \"" + n +
         "\"\n"
         "%3 : f32[" +
         n + ", 4] = aten::mul(self=%1, other=" + scale +
         ") @forward \"m\"\n"
         "%4 : f32[" +
         std::to_string(4 * length) + "] = aten::view(self=%3, size=[" + std::to_string(4 * length) +
         "]) @forward \"m\"\n"
         "%5 loss : f32[] = aten::" +
         last +
         "(self=%4, dtype=none) @forward\n"
         "return loss \"loss\" %5";
}

static std::uint64_t of(const std::string& text) { return structure_of(from_text(text)); }

TEST_CASE("lengths do not count, and what follows them") {
  CHECK(of(text_of(3)) == of(text_of(7)));
  CHECK(of(text_of(3, "0.5")) != of(text_of(3, "0.25")));
  CHECK(of(text_of(3, "0.5", "mean")) != of(text_of(3, "0.5", "sum")));
}

TEST_CASE("what is no size counts") {
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string text = text_of(3);
    text.replace(text.find(from), from.size(), to);
    return of(text) != of(text_of(3));
  };
  CHECK(changed("\"w\"", "\"v\""));
  CHECK(changed("input \"x\"", "buffer \"x\""));
  CHECK(changed("input \"x\" : f32", "input \"x\" : f64"));
  CHECK(changed("f32[3, 4] = aten::mul", "f32[3, 4, 1] = aten::mul"));
  CHECK(changed("@forward \"m\"", "@backward \"m\""));
  CHECK(changed("size=[12]", "size=[3, 4]"));
  CHECK(changed("other=0.5", "other=1"));
  CHECK(changed("self=%4", "self=%3"));
  CHECK(changed("return loss \"loss\" %5", "return output \"loss\" %5"));
}
