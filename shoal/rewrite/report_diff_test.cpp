// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/report_diff.h"

#include <doctest/doctest.h>

#include <string>

using namespace shoal;
using namespace shoal::rewrite;
using sharding::Layout;
using sharding::Replicate;
using sharding::Shard;

namespace {

const Layout kWhole = {{Replicate{}}};
const Layout kRows = {{Shard{.dim = 0}}};
const Layout kColumns = {{Shard{.dim = 1}}};

LayerLine weight(const Layout& layout, std::vector<std::string> paths) {
  return {.path = folded(paths[0]),
          .is_parameter = true,
          .shape = {16, 10},
          .kept = layout,
          .used = layout,
          .paths = paths};
}

LayerLine output(const Layout& layout, const std::string& path) {
  return {.path = path, .shape = {8, 10}, .kept = layout, .used = layout, .paths = {path}};
}

Traffic gather(std::int64_t count, std::int64_t bytes) {
  return {.module = "h.*",
          .what = "activations",
          .op = "all_gather",
          .axis = "tensor",
          .phase = ir::Phase::Forward,
          .count = count,
          .bytes = bytes};
}

ComparedPlan plan(std::string name) {
  return {.name = std::move(name),
          .mesh = {.axes = {{"tensor", 2}}},
          .report = {.flops = 0,
                     .shares = {{.axis = "tensor", .ranks = 2, .flops = 1, .parameter_bytes = 1}},
                     .layers = {weight(kRows, {"h.0.fc.weight", "h.1.fc.weight"}), output(kRows, "h.0")},
                     .traffic = {gather(2, 1024)},
                     .whole = {},
                     .unknown = {}},
          .settings = {},
          .memory = 4096,
          .seconds = {}};
}

}  // namespace

TEST_CASE("a plan is like itself") {
  CHECK(diff_text(plan("one"), plan("other")) ==
        "A  one    tensor=2\n"
        "B  other  tensor=2\n"
        "the plans are alike\n");
}

TEST_CASE("what differs is said of both plans, and then the totals") {
  const ComparedPlan a = plan("a");
  ComparedPlan b = plan("b");
  b.report.layers = {weight(kColumns, {"h.0.fc.weight", "h.1.fc.weight"}), output(kRows, "h.0"),
                     output(kWhole, "norm")};
  b.report.traffic = {gather(3, 3072)};
  b.report.traffic.push_back(gather(1, 17));
  b.report.traffic.back().op = "all_reduce";
  b.report.shares[0].parameter_bytes = 0.5;
  b.settings = {"buckets 1MiB"};
  b.memory = 1024;
  CHECK(diff_text(a, b) == R"(A  a  tensor=2
B  b  tensor=2
parameters, as they are kept -> as they are used:            A            B
  h.*.fc.weight x2                                 [16, 10]  tensor=S(0)  tensor=S(1)
outputs of modules:           A  B
  norm               [8, 10]  -  whole
collectives of a step, bytes that a rank sends: A               B               B - A
  activations forward  all_gather     tensor    x2    1.0KiB    x3    3.0KiB    +2.0KiB     h.*
  activations forward  all_reduce     tensor    -               x1    17B       +17B        h.*
other lines of the plans:
  B  buckets 1MiB
totals of a step:                               A               B               B - A
  bytes that a rank sends                       1.0KiB          3.0KiB          +2.0KiB  (+201.66 %)
  flops split along tensor                      100.00 %        100.00 %
  parameters' bytes split along tensor          100.00 %        50.00 %         -50.00 points
  memory of a rank, at most                     4.0KiB          1.0KiB          -3.0KiB  (-75.00 %)
)");
}

TEST_CASE("layers of one name that change places differ") {
  ComparedPlan a = plan("a"), b = plan("b");
  a.report.layers = {weight(kRows, {"h.0.fc.weight"}), weight(kWhole, {"h.1.fc.weight"})};
  b.report.layers = {weight(kWhole, {"h.0.fc.weight"}), weight(kRows, {"h.1.fc.weight"})};
  const std::string text = diff_text(a, b);
  CHECK(text.find("h.*.fc.weight                                    [16, 10]  tensor=S(0)  whole\n") !=
        std::string::npos);
  CHECK(text.find("h.*.fc.weight                                    [16, 10]  whole        tensor=S(0)\n") !=
        std::string::npos);
}

TEST_CASE("layouts that are too long for one line stand below each other") {
  ComparedPlan a = plan("a"), b = plan("b");
  for (ComparedPlan* each : {&a, &b}) {
    each->mesh = {.axes = {{"replicate", 2}, {"shard", 2}, {"tensor", 2}}};
    each->report.layers.resize(1);
    each->report.layers[0].kept = {{Replicate{}, Shard{.dim = 0}, Shard{.dim = 1, .outer = 3, .unit = 64}}};
    each->report.layers[0].used = {{Replicate{}, Replicate{}, Shard{.dim = 1, .outer = 3, .unit = 64}}};
  }
  b.report.layers[0].used.placements[2] = Replicate{};
  const std::string text = diff_text(a, b);
  CHECK(text.find(
            "  h.*.fc.weight x2                                 [16, 10]  A  shard=S(0) tensor=S(1, outer=3, "
            "unit=64) -> tensor=S(1, outer=3, unit=64)\n"
            "                                                             B  shard=S(0) tensor=S(1, outer=3, "
            "unit=64) -> whole\n") != std::string::npos);
}

TEST_CASE("as many messages of other bytes differ") {
  const ComparedPlan a = plan("a");
  ComparedPlan b = plan("b");
  b.report.traffic = {gather(2, 512)};
  CHECK(diff_text(a, b).find("x2    1.0KiB    x2    512B      -512B") != std::string::npos);
}

TEST_CASE("a simulated step is among the totals, and another mesh is a difference") {
  ComparedPlan a = plan("a"), b = plan("b");
  a.seconds = 0.002;
  b.seconds = 0.003;
  CHECK(
      diff_text(a, b).find("  time of a step, simulated                     2.000 ms        3.000 ms        "
                           "+1.000 ms  (+50.00 %)\n") != std::string::npos);
  b = plan("b");
  b.mesh.axes.front().size *= 2;
  CHECK(diff_text(a, b).find("alike") == std::string::npos);
}
