// SPDX-License-Identifier: Apache-2.0
// A report as people read it.
#include <cstdio>
#include <string_view>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/rewrite/report.h"
#include "shoal/rewrite/report_words.h"

namespace shoal::rewrite {

using sharding::Mesh;

static std::string flops_in_words(double flops) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", flops);
  return text;
}

static std::string ratio(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", number);
  return text;
}

// The first groups of ranks along each axis.
static std::string text_of_ranks(const Mesh& mesh) {
  constexpr int kGroups = 4, kRanks = 8;
  std::string text = concat("mesh: ", to_text(mesh), ", ", mesh.size(), " ranks\n");
  for (std::size_t axis = mesh.axes.size(); axis-- > 0;) {
    if (mesh.axes[axis].size == 1) continue;
    text += padded(concat("  along ", mesh.axes[axis].name), 20);
    int groups = 0;
    for (int rank = 0; rank < mesh.size() && groups <= kGroups; ++rank) {
      if (mesh.coordinate(rank, static_cast<int>(axis)) != 0) continue;
      if (++groups > kGroups) {
        text += " | ...";
        break;
      }
      const auto members = mesh.group(rank, {static_cast<int>(axis)});
      text += groups > 1 ? " |" : "";
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (i == kRanks && members.size() > kRanks + 1) text += " ...";
        if (i < kRanks || i + 1 == members.size()) text += concat(' ', members[i]);
      }
    }
    text += '\n';
  }
  return text;
}

static std::string text_of_layers(const Mesh& mesh, const Report& report) {
  std::string text;
  for (const bool parameters : {true, false}) {
    text += parameters ? "parameters, as they are kept -> as they are used:\n" : "outputs of modules:\n";
    for (const LayerLine& line : report.layers) {
      if (line.is_parameter != parameters) continue;
      text += concat(padded("  " + name_of(line), 46), padded(shape_text(line.shape), 18),
                     layouts_text(mesh, line), '\n');
    }
  }
  return text;
}

std::string traffic_text(const Report& report, std::string_view of) {
  std::string text = concat("collectives of ", of, ", bytes that a rank sends:\n");
  std::int64_t all = 0;
  for (const Traffic& traffic : report.traffic) {
    all += traffic.bytes;
    text += concat(padded("  " + traffic.what, 14), padded(std::string(ir::name_of(traffic.phase)), 10),
                   padded(concat(traffic.op, " x", traffic.count), 24), padded(traffic.axis, 11),
                   padded(human_bytes(traffic.bytes), 12), traffic.module, '\n');
  }
  return text + concat("  in all ", human_bytes(all), '\n');
}

std::string to_text(const Mesh& mesh, const Report& report, std::string_view of) {
  std::string text = text_of_ranks(mesh) + text_of_layers(mesh, report) + traffic_text(report, of);
  text += concat("work: ", flops_in_words(report.flops), " flops of all ranks together\n");
  for (const std::string& op : report.unknown) text += concat("  of ", op, " it is not known\n");
  for (const AxisShare& share : report.shares)
    text += concat("  split along ", padded(share.axis, 10), percent(share.flops), " of the flops, ",
                   percent(share.parameter_bytes), " of the parameters' bytes; the busiest rank has ",
                   ratio(share.busiest), " of the mean work\n");
  text += concat("ops that run whole along an axis that could cut them: ", report.whole.empty() ? "none" : "",
                 '\n');
  for (const WholeOp& op : report.whole)
    text += concat("  ", padded(concat(op.op, " x", op.count), 36), padded(op.axes, 18),
                   padded(human_bytes(op.bytes), 12), padded(flops_in_words(op.flops) + " flops", 16),
                   op.module, '\n');
  return text;
}

}  // namespace shoal::rewrite
