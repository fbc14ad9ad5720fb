// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/in_parts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/planner/find.h"

using namespace shoal;
using namespace shoal::planner;

TEST_CASE("what is kept in parts takes as little as any choice that keeps the limit, by brute force") {
  const std::vector<int> widths = {3, 5, 9, 14, 26, 40};
  std::string text = "graph captured\n", nodes, results = "return ";
  for (std::size_t i = 0; i < widths.size(); ++i) {
    text += concat("%", i, " = parameter \"", std::string(i + 1, 'a'), ".w\" : f32[8, ", widths[i], "]\n");
    nodes += concat("%", i + 7, " : f32[4, ", widths[i], "] = aten::mm(self=%6, mat2=%", i, ") @forward\n");
    results += concat(i > 0 ? ", output \"" : "output \"", i, "\" %", i + 7);
  }
  const ir::Graph graph = ir::from_text(concat(text, "%6 = input \"x\" : f32[4, 8]\n", nodes, results, "\n"));
  const auto mesh = sharding::mesh_from_text("shard=2");
  Question question{.axes = {}, .data_ranks = 2, .zero_axis = 0, .gap = 1e-9};
  const double free = find(graph, mesh, question).seconds;
  for (const bool again : {true, false})
    for (const std::int64_t limit : {1600, 1800, 2000, 2345, 2800, 3000, 3104}) {
      double least = std::numeric_limits<double>::infinity();
      for (unsigned choice = 0; choice < 1U << widths.size(); ++choice) {
        double kept = 0, seconds = 0;
        for (std::size_t i = 0; i < widths.size(); ++i) {
          const double bytes = 4.0 * 8 * widths[i];
          const bool in_parts = (choice >> i & 1U) != 0;
          kept += in_parts ? bytes / 2 : bytes;
          if (in_parts && again) seconds += bytes / 2 / Rates().link + Rates().latency;
        }
        if (kept <= static_cast<double>(limit)) least = std::min(least, seconds);
      }
      question.most_kept = limit;
      question.gathers_again = again;
      CAPTURE(limit);
      CHECK(find(graph, mesh, question).seconds - free == doctest::Approx(least).epsilon(1e-6));
    }
}
