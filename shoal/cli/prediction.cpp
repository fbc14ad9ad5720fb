// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/prediction.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/cli/played_step.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cost/cluster.h"
#include "shoal/observe/file.h"
#include "shoal/simulate/play.h"

namespace shoal::cli {

using nlohmann::json;
using simulate::Comparison;
using simulate::OpTimes;

cost::Cluster cluster_of(const Recipe& recipe) {
  DiskFileSystem files;
  return cost::cluster_from_toml(read_text(files, recipe.profiling.cluster), recipe.profiling.cluster);
}

Prediction::Prediction(const Recipe& recipe, int ranks, std::filesystem::path folder)
    : cluster_(cluster_of(recipe)), folder_(std::move(folder)) {
  const PlayedStep step = play_step(recipe, cluster_, ranks);
  simulated_ = simulate::trace_of(step.tasks, step.spans);
  hosts_ = cluster_.host_of(ranks - 1) + 1;
}

static std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", 1e3 * seconds);
  return text;
}

static std::string line_of(const Comparison& comparison) {
  char percent[32];
  std::snprintf(percent, sizeof percent, "%+.1f %%", 100 * comparison.off());
  return concat("simulated: ", milliseconds(comparison.simulated), " a step, measured ",
                milliseconds(comparison.measured), " (", percent, ")");
}

static json to_json(const Comparison& comparison) {
  json ops = json::array();
  for (const OpTimes& op : comparison.ops)
    ops.push_back({{"op", op.op},
                   {"is_message", op.is_message},
                   {"calls", op.calls},
                   {"simulated_seconds", op.simulated},
                   {"measured_seconds", op.measured}});
  return {{"rank", comparison.rank},
          {"steps", comparison.steps},
          {"simulated_seconds", comparison.simulated},
          {"measured_seconds", comparison.measured},
          {"seconds_in_no_op", comparison.beside},
          {"ops", std::move(ops)}};
}

void Prediction::look(const observe::Trace& trace) {
  if (++steps_ != kComparedSteps) return;
  // The first half captures, and is checked.
  const Comparison comparison = simulate::compare(simulated_, trace, kComparedSteps / 2);
  json all = to_json(comparison);
  all["cluster"] = cost::to_toml(cluster_);
  all["hosts"] = hosts_;
  const std::filesystem::path file = folder_ / "simulated.json";
  observe::write_file(file, all.dump(2) + "\n");
  constexpr double kFarOff = 0.15;
  std::string line = line_of(comparison);
  if (std::abs(comparison.off()) > kFarOff && !comparison.ops.empty()) {
    const OpTimes& most = comparison.ops.front();
    line += concat("; most of it is ", most.op, ", ", milliseconds(most.simulated), " simulated and ",
                   milliseconds(most.measured),
                   " measured. To learn from this: shoal calibrate --from-trace=", file.string(),
                   " --output=FILE");
  }
  say(concat(line, "; all: ", file.string()));
}

Simulated read_simulated(const std::string& file) {
  DiskFileSystem files;
  const std::string text = read_text(files, file);
  try {
    const json all = json::parse(text);
    Simulated read = {.cluster = cost::cluster_from_toml(all.at("cluster").get<std::string>(), file),
                      .hosts = all.at("hosts"),
                      .comparison = {}};
    Comparison& comparison = read.comparison;
    comparison = {.rank = all.at("rank"),
                  .steps = all.at("steps"),
                  .simulated = all.at("simulated_seconds"),
                  .measured = all.at("measured_seconds"),
                  .beside = all.at("seconds_in_no_op"),
                  .ops = {}};
    for (const json& op : all.at("ops"))
      comparison.ops.push_back({.op = op.at("op"),
                                .is_message = op.at("is_message"),
                                .calls = op.at("calls"),
                                .simulated = op.at("simulated_seconds"),
                                .measured = op.at("measured_seconds")});
    SHOAL_CHECK(comparison.rank >= 0 && comparison.rank < read.cluster.size(), InvalidInput,
                "calibrate: ", file, " is of rank ", comparison.rank, ", and its cluster has ",
                read.cluster.size(), " devices");
    return read;
  } catch (const json::exception& error) {
    fail(ErrorKind::InvalidInput, "calibrate: ", file,
         " is not what a run with profiling.cluster has written: ", error.what());
  }
}

}  // namespace shoal::cli
