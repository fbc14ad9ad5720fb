// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/report_page.h"

#include <doctest/doctest.h>

#include <regex>
#include <string>
#include <vector>

using namespace shoal;
using namespace shoal::rewrite;
using sharding::Layout;
using sharding::Mesh;
using sharding::Replicate;
using sharding::Shard;

namespace {

const Mesh kMesh = {.axes = {{"tensor", 2}}};
const Layout kWhole = {{Replicate{}}};
const Layout kRows = {{Shard{.dim = 0}}};

LayerLine line(const std::string& path, bool is_parameter, const Layout& kept = kRows,
               const Layout& used = kRows) {
  return {.path = path,
          .is_parameter = is_parameter,
          .shape = {16, 10},
          .kept = kept,
          .used = used,
          .paths = std::vector<std::string>(4, path)};
}

Traffic message(const std::string& module, const std::string& what, ir::Phase phase, std::int64_t bytes) {
  return {.module = module,
          .what = what,
          .op = "all_gather",
          .axis = "tensor",
          .phase = phase,
          .count = 4,
          .bytes = bytes};
}

// Without tags; where a word may break there is no space.
std::string words_of(const std::string& page) {
  const std::string whole = std::regex_replace(page, std::regex("<wbr>"), "");
  return std::regex_replace(std::regex_replace(whole, std::regex("<[^>]*>"), " "), std::regex("\\s+"), " ");
}

void check_order(const std::string& text, const std::vector<std::string>& wanted) {
  std::size_t at = 0;
  for (const std::string& each : wanted) {
    const std::size_t next = text.find(each, at);
    CHECK_MESSAGE(next != std::string::npos, each, " is not after what is before it");
    if (next == std::string::npos) return;
    at = next + each.size();
  }
}

}  // namespace

TEST_CASE("layers stand in the order of the step, with their messages between") {
  Report report;
  report.layers = {line("embed.weight", true), line("h.*.fc.weight", true, kRows, kWhole),
                   line("h.*.fc", false), line("norm", false), line("embed", false)};
  report.traffic = {message("h.*.fc", "parameters", ir::Phase::Forward, 1024),
                    message("norm", "activations", ir::Phase::Forward, 2048),
                    message("h.*.fc", "activations", ir::Phase::Backward, 3072),
                    message("", "gradients", ir::Phase::Backward, 4096)};
  const std::string words = words_of(report_html(kMesh, report, "a title"));
  check_order(words, {"a title",
                      "mesh tensor=2 ",
                      "a rank sends 10.0KiB",
                      "what it hands on",
                      "embed ×4",
                      "weight [16, 10]",
                      "tensor=S(0)",  // used first, and handed on last
                      "h.*. fc ×4",
                      "weight",
                      "kept",
                      "tensor=S(0)",
                      "→",
                      "used",
                      "whole",
                      "for forward all_gather over tensor 1.0KiB ×4",
                      "tensor=S(0)",
                      "↓ forward all_gather over tensor 2.0KiB",
                      "↑ backward all_gather over tensor 3.0KiB",
                      "norm",
                      "embed",
                      "gradients in backward all_gather over tensor 4.0KiB"});
}

TEST_CASE("no message is left out, whatever layer it is of") {
  Report report;
  report.layers = {line("fc.weight", true), line("fc", false)};
  report.traffic = {message("nowhere", "activations", ir::Phase::Forward, 111),
                    message("nowhere", "parameters", ir::Phase::Forward, 222),
                    message("fc", "parameters", ir::Phase::Update, 333),
                    message("fc", "norm", ir::Phase::Backward, 444)};
  const std::string page = report_html(kMesh, report, "");
  const std::size_t end = page.find("of no one layer");
  for (const char* bytes : {"111B", "222B", "333B", "444B"})
    CHECK(page.find(bytes, end) != std::string::npos);
}

TEST_CASE("a page of one rank says that there is nothing to draw") {
  const std::string words = words_of(report_html({.axes = {{"tensor", 1}}}, {}, ""));
  CHECK(words.find("One rank has all of everything.") != std::string::npos);
}

TEST_CASE("a page loads nothing, and names are escaped") {
  Report report;
  report.layers = {line("<script>alert('a' & \"b\")</script>.weight", true)};
  const std::string page = report_html({.axes = {{"<i>", 2}}}, report, "<b>bold</b>");
  CHECK(page.find("<script") == std::string::npos);
  CHECK(page.find("<b>bold") == std::string::npos);
  CHECK(page.find("<i>=") == std::string::npos);
  CHECK(page.find("&lt;script&gt;alert(&#39;a&#39; &amp; &quot;b&quot;)") != std::string::npos);
  for (const char* loads : {"http", "src=", "href=", "@import", "url(\"", "url('"})
    CHECK(page.find(loads) == std::string::npos);
}
