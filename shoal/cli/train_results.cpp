// SPDX-License-Identifier: Apache-2.0
// What a run leaves in its folder, and its last lines on the screen.
#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/device.h"
#include "shoal/cli/flops.h"
#include "shoal/cli/interrupt.h"
#include "shoal/cli/prediction.h"
#include "shoal/cli/train_run.h"
#include "shoal/observe/chrome_trace.h"
#include "shoal/observe/summary.h"
#include "shoal/observe/timeline.h"
#include "shoal/simulate/comparison.h"

namespace shoal::cli {

using nlohmann::json;

// A model may write any bytes: a terminal gets UTF-8 without control characters.
static std::string shown(const std::string& sample) {
  auto text =
      json::parse(json(sample).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
  for (char& c : text)
    if ((c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  return text;
}

// Says it too.
// One of the steps that the trace has, of their median time; and what was played of it.
static std::string timeline_of(const TrainRun& run, const observe::Trace& trace, std::size_t steps) {
  const observe::Trace measured = simulate::median_step(trace, steps / 2);  // the first ones capture
  std::vector<observe::Drawing> drawings = {{.what = run.prediction ? "measured" : "", .trace = &measured}};
  if (run.prediction != nullptr)
    drawings.push_back({.what = "simulated", .trace = &run.prediction->simulated()});
  return observe::timeline_html(drawings, concat(run.recipe.model.name, ": a step of ", run.ranks.size(),
                                                 run.ranks.size() == 1 ? " rank" : " ranks"));
}

static json memory_in(const TrainRun& run, std::int64_t most_of_others) {
  const MemoryLog::Phase& largest = run.memory->largest();
  const std::int64_t most = std::max(most_of_others, largest.peak);
  json memory = {
      {"peak_bytes", most}, {"proportional_bytes", run.memory->proportional()}, {"phases", json::object()}};
  for (const auto& [name, peak] : run.memory->phases()) memory["phases"][name] = peak;
  std::string predicted;  // of main memory, where the model is in it
  if (run.recipe.training.device == DeviceType::CPU) {
    memory["predicted_bytes"] = run.predicted_bytes;
    predicted = concat("; predicted ", human_bytes(run.predicted_bytes));
  } else if (const auto peak = peak_bytes_of_device()) {
    memory["device_peak_bytes"] = *peak;
    say(concat("device:  ", human_bytes(*peak), " of its memory at most"));
  }
  say(concat("memory:  ", human_bytes(most), run.ranks.size() > 1 ? " of a rank" : "", " at most, for ",
             largest.name, predicted, "; the process grew by ", human_bytes(run.memory->proportional())));
  return memory;
}

void write_results(TrainRun& run, const observe::Trace& trace, double seconds_in_all) {
  run.learner.trainer.release();
  const Validation all = validate(run, run.task.held_out.num_batches);
  run.memory->end("validation");
  const auto stalest = run.learner.trainer.stalest_row();  // all ranks count, or none
  const std::int64_t steps_lacked = stalest ? run.ranks.largest(static_cast<std::int64_t>(*stalest)) : -1;
  run.learner.trainer.end();  // what follows reads the model itself
  run.memory->end("the model, gathered");
  const std::int64_t most = run.ranks.largest(run.memory->largest().peak);
  if (run.metrics == nullptr) return;
  report(run, all);
  json results = {{"model", run.recipe.model.name},
                  {"parameters", num_parameters(run.recipe, *run.learner.model.ptr())},
                  {"data", run.task.description},
                  {"steps", run.progress.step},
                  {"interrupted", interrupted() != 0},
                  {"seed", run.recipe.training.seed},
                  {"ranks", run.ranks.size()},
                  {"threads", at::get_num_threads()},
                  {"training_loss", run.progress.loss},
                  {"validation_loss", all.loss},
                  {"training_seconds", run.seconds},
                  {"memory_bytes", run.memory->of_process()}};
  if (run.seconds > 0) {
    const auto steps = static_cast<double>(run.progress.step - run.first_step);
    results[run.task.unit + "_per_second"] = steps * static_cast<double>(units_per_step(run)) / run.seconds;
    results["data_wait_share"] = run.seconds_waited / run.seconds;
    results["checkpoint_stall_seconds"] = run.seconds_saving;
    say(concat("waited for data: ", three_digits(100 * run.seconds_waited / run.seconds),
               "% of the training time"));
  }
  if (steps_lacked >= 0) {
    results["stalest_row_steps"] = steps_lacked;
    say(concat("rows lacked ", steps_lacked, " steps at most when they were read, of ps.staleness ",
               run.recipe.ps.staleness));
  }
  if (all.bits_per_byte && run.task.trigram_bits_per_byte) {
    results["bits_per_byte"] = *all.bits_per_byte;
    results["trigram_bits_per_byte"] = *run.task.trigram_bits_per_byte;
    say(concat("held-out bits per byte: ", three_digits(*all.bits_per_byte),
               "  (byte trigram model: ", three_digits(*run.task.trigram_bits_per_byte), ")"));
  }
  if (all.clicks) {
    json& measures = results["measures"];
    measures["log loss"] = {{"value", all.clicks->log_loss},
                            {"baseline", all.clicks->base_log_loss},
                            {"baseline_name", "the base rate"}};
    measures["AUC"] = {{"value", all.clicks->auc},
                       {"baseline", run.task.best_auc.value_or(0.5)},
                       {"baseline_name", run.task.best_auc ? "the oracle" : "chance"}};
    for (const auto& [name, measure] : measures.items())
      say(concat("held-out ", name, ": ", four_digits(measure["value"].get<double>()), "  (",
                 measure["baseline_name"].get<std::string>(), ": ",
                 four_digits(measure["baseline"].get<double>()), ")"));
  } else if (run.task.target_counts.defined()) {
    for (const Measure& measure : measures_of(run.learner.model, run.task)) {
      results["measures"][measure.name] = {
          {"value", measure.value}, {"baseline", measure.baseline}, {"baseline_name", measure.baseline_name}};
      say(concat("held-out ", measure.name, ": ", three_digits(measure.value), "  (", measure.baseline_name,
                 ": ", three_digits(measure.baseline), ")"));
    }
  }
  if (run.task.sample) {
    const std::string sample = run.task.sample(run.learner.model);
    observe::write_file(run.folder / "sample.txt", sample);
    say(concat("\nsample:\n", shown(sample), "\n"));
    say(concat("sample:  ", (run.folder / "sample.txt").string()));
  }
  run.memory->end("results");
  results["memory"] = memory_in(run, most);
  if (run.recipe.profiling.enable_profiling) {
    observe::write_file(run.folder / "trace.json", observe::chrome_trace(trace));
    say(concat("trace:   ", (run.folder / "trace.json").string()));
  }
  observe::write_file(run.folder / "loss.svg", observe::loss_curve(run.losses, run.validation_losses,
                                                                   run.recipe.model.name + ": loss by step"));
  results["seconds"] = seconds_in_all;
  observe::write_file(run.folder / "results.json",
                      results.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
  say(concat("metrics: ", run.metrics->path().string()));
  say(concat("results: ", (run.folder / "results.json").string()));
  const auto is_step = [](const observe::Event& event) { return event.name == "step"; };
  const auto steps = static_cast<std::size_t>(std::ranges::count_if(trace.events, is_step));
  if (const std::string& page = run.recipe.profiling.timeline; !page.empty() && steps > 0) {
    observe::write_file(page, timeline_of(run, trace, steps));
    say(concat("timeline: ", page));
  }
}

std::string lines_up_to(std::int64_t step, const std::filesystem::path& path, TrainRun* run) {
  std::string kept, line;
  std::ifstream file(path);
  while (std::getline(file, line)) {
    const json values = json::parse(line, nullptr, false);  // the last one may be cut off
    if (!values.is_object() || values.value("step", step + 1) > step) continue;
    kept += line + "\n";
    if (run == nullptr) continue;
    const auto at = values.value("step", std::int64_t{0});
    if (values.contains("loss")) run->losses.push_back({at, values.value("loss", 0.0)});
    if (values.contains("validation_loss"))
      run->validation_losses.push_back({at, values.value("validation_loss", 0.0)});
  }
  return kept;
}

}  // namespace shoal::cli
