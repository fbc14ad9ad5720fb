// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/simulate.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/observe/timeline.h"
#include "shoal/schedule/csv.h"
#include "shoal/schedule/schedule.h"
#include "shoal/simulate/pipeline.h"

namespace shoal::cli {

static constexpr double kNanosecondsPerMillisecond = 1e6;
static constexpr double kMostMilliseconds = 1e6;  // so that the sum of all stays a number of nanoseconds
static constexpr std::int64_t kMostPasses = 1'000'000;  // stages times micro-batches, or times themselves
static constexpr const char* kUsual = "1f1b";

static simulate::ActionTimes times_of(const std::string& text) {
  std::array<std::int64_t, 4> nanoseconds = {};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  bool is_right = true;
  for (std::size_t i = 0; i < nanoseconds.size() && is_right; ++i) {
    double milliseconds = 0;
    const auto [stop, error] = std::from_chars(at, end, milliseconds);
    const bool is_last = i + 1 == nanoseconds.size();
    is_right = error == std::errc() && milliseconds >= 0 && milliseconds <= kMostMilliseconds &&
               (is_last ? stop == end : stop != end && *stop == ',');
    if (!is_right) break;
    nanoseconds[i] = std::llround(milliseconds * kNanosecondsPerMillisecond);
    SHOAL_CHECK(milliseconds == 0 || nanoseconds[i] > 0, InvalidInput, "--times is '", text,
                "', and time is counted in nanoseconds, 0.000001 ms");
    at = is_last ? stop : stop + 1;
  }
  SHOAL_CHECK(is_right, InvalidInput, "--times is '", text,
              "', not F,I,W,TRANSFER in milliseconds from 0 to ",
              static_cast<std::int64_t>(kMostMilliseconds), ", as in 18.522,18.086,9.337,0.601");
  return {nanoseconds[0], nanoseconds[1], nanoseconds[2], nanoseconds[3]};
}

static schedule::Timeline read_csv(const Simulate& options) {
  SHOAL_CHECK(options.stages == 0 && options.stages_per_rank == 0, InvalidInput,
              "--stages and --stages-per-rank are not for --csv, whose file says them");
  SHOAL_CHECK(options.schedule.empty(), InvalidInput, "--schedule is not for --csv, whose file is one");
  DiskFileSystem files;
  return schedule::from_csv(read_text(files, options.csv), options.csv, options.microbatches);
}

static std::string name_of_schedule(const Simulate& options) {
  return options.schedule.empty() ? kUsual : options.schedule;
}

static schedule::Timeline timeline_of(const Simulate& options) {
  for (const auto& [name, value] :
       {std::pair("--stages", options.stages), std::pair("--stages-per-rank", options.stages_per_rank),
        std::pair("--microbatches", options.microbatches)})
    SHOAL_CHECK(value >= 0, InvalidInput, name, " is ", value, ", not 1 or more");
  if (!options.csv.empty()) return read_csv(options);
  const schedule::Schedule& schedule = schedule::named(name_of_schedule(options));
  SHOAL_CHECK(options.stages > 0 && options.microbatches > 0, InvalidInput,
              "--stages and --microbatches say how large the pipeline is; both are needed");
  // V schedules are those of as many micro-batches as there are stages, cut off.
  const std::int64_t passes = std::int64_t{options.stages} * std::max(options.microbatches, options.stages);
  SHOAL_CHECK(passes <= kMostPasses, InvalidInput, "--stages times ",
              options.microbatches < options.stages ? "itself" : "--microbatches", " is ", passes,
              ", more than ", kMostPasses);
  const int stages_per_rank =
      options.stages_per_rank > 0 ? options.stages_per_rank : schedule.stages_per_rank;
  SHOAL_CHECK(options.stages % stages_per_rank == 0, InvalidInput, "--stages is ", options.stages,
              ", not a multiple of the ", stages_per_rank, " stages that ", schedule.name, " has on a rank");
  return schedule.build(options.stages / stages_per_rank, options.microbatches, stages_per_rank);
}

void check(const Simulate& options) {
  SHOAL_CHECK(options.cluster.empty() && options.plan.empty() && options.ranks == 0, InvalidInput,
              "--ranks, --cluster and --plan are of a recipe's step, and no RECIPE is given");
  times_of(options.times);
  timeline_of(options);
}

static double milliseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / kNanosecondsPerMillisecond;
}

static void write(const std::string& path, const std::string& text) {
  DiskFileSystem files;
  const auto file = files.create(path);
  file->write(std::as_bytes(std::span(text)));
  file->sync();
}

int simulate(const Simulate& options) {
  const schedule::Timeline timeline = timeline_of(options);
  const simulate::Tasks tasks = simulate::tasks_of(timeline, times_of(options.times));
  const std::vector<simulate::Span> spans = simulate::play(tasks);
  const std::vector<simulate::Bubble> bubbles = simulate::bubbles(tasks, spans, "compute");
  const simulate::Bubble& largest = *std::ranges::max_element(bubbles, {}, &simulate::Bubble::nanoseconds);
  const std::int64_t step = std::ranges::max_element(spans, {}, &simulate::Span::end)->end;

  const std::string name = options.csv.empty() ? name_of_schedule(options) : options.csv;
  const std::string sizes = concat(timeline.num_stages(), " stages on ", timeline.num_ranks(), " ranks, ",
                                   timeline.num_microbatches(), " micro-batches");
  std::printf("%s: %s\n", name.c_str(), sizes.c_str());
  if (!timeline.note.empty()) std::printf("%s\n", timeline.note.c_str());
  std::printf("step %.3f ms, bubble rate %.4f\n\n", milliseconds(step), largest.rate());
  std::printf("rank   bubble_ms    rate  activations: for backward, for weight gradients alone\n");
  const std::vector<schedule::Held> held = schedule::most_held(timeline);
  for (const simulate::Bubble& bubble : bubbles) {
    const auto [backward, weights] = held[static_cast<std::size_t>(bubble.rank)];
    std::printf("%4d %11.3f  %.4f %12d %13d %26d\n", bubble.rank, milliseconds(bubble.nanoseconds),
                bubble.rate(), backward + weights, backward, weights);
  }
  if (!options.save.empty()) write(options.save, schedule::to_csv(timeline));
  if (!options.timeline.empty()) {
    const observe::Trace trace = simulate::trace_of(tasks, spans);
    write(options.timeline,
          observe::timeline_html({{.what = "", .trace = &trace}}, concat(name, ": ", sizes)));
  }
  return 0;
}

}  // namespace shoal::cli
