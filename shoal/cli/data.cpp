// SPDX-License-Identifier: Apache-2.0
// shoal data generate: each file is a part of a day, made by one thread; which samples are in it depends on
// the options alone.
#include "shoal/cli/data.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/data/click_metrics.h"

namespace shoal::cli {

void check(const DataGenerate& options) {
  const auto must = [](bool holds, const char* name, std::int64_t value, const char* wanted) {
    SHOAL_CHECK(holds, InvalidInput, name, " is ", value, ", not ", wanted);
  };
  must(options.samples > 0, "--samples", options.samples, "1 or more");
  must(options.days > 0, "--days", options.days, "1 or more");
  must(options.files > 0 && options.files <= options.samples, "--files", options.files, "1 to --samples");
  must(options.threads >= 0, "--threads", options.threads, "1 or more");
  data::check(options.world);
}

static data::ClickMetrics write_file(const data::ClickWorld& world, std::int64_t begin, std::int64_t end,
                                     const std::filesystem::path& path) {
  DiskFileSystem files;
  const auto file = files.create(path);
  data::ClickMetrics oracle;
  std::string text;
  std::vector<float> logits, labels;
  constexpr std::size_t kBlock = 1 << 20;
  const auto write_block = [&] {
    file->write(std::as_bytes(std::span(text)));
    oracle.add(logits, labels);
    text.clear();
    logits.clear();
    labels.clear();
  };
  for (std::int64_t i = begin; i < end; ++i) {
    const data::ClickSample sample = world.sample(static_cast<std::uint64_t>(i));
    append_line(sample, text);
    logits.push_back(static_cast<float>(sample.logit));
    labels.push_back(sample.is_click ? 1.0f : 0.0f);
    if (text.size() >= kBlock) write_block();
  }
  write_block();
  file->sync();
  return oracle;
}

// All files of a day, by several threads; what the oracle says of them.
static data::ClickMetrics write_day(const DataGenerate& options, int day) {
  const data::ClickWorld world(options.world, static_cast<std::uint32_t>(day));
  std::atomic<int> next = 0;
  std::mutex mutex;  // guards the rest
  data::ClickMetrics oracle;
  std::exception_ptr failure;
  const auto work = [&] {
    for (int part = next++; part < options.files; part = next++) try {
        const std::string name = concat("day_", day, "_part_", part, ".tsv");
        const data::ClickMetrics of_file = write_file(world, options.samples * part / options.files,
                                                      options.samples * (part + 1) / options.files,
                                                      std::filesystem::path(options.folder) / name);
        const std::lock_guard lock(mutex);
        oracle.merge(of_file);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
        next = options.files;
      }
  };
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int count = std::min(options.threads > 0 ? options.threads : cores, options.files);
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < count; ++i) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
  return oracle;
}

int data_generate(const DataGenerate& options) {
  DiskFileSystem().make_folder(options.folder);
  data::ClickMetrics all;
  const auto print = [](const std::string& what, const data::ClickReport& report) {
    std::printf("%s: %lld samples, %.1f %% clicks, oracle AUC %.4f, log loss %.4f (%.4f without a model)\n",
                what.c_str(), static_cast<long long>(report.samples),
                100 * static_cast<double>(report.positives) / static_cast<double>(report.samples), report.auc,
                report.log_loss, report.base_log_loss);
    std::fflush(stdout);
  };
  for (int day = 0; day < options.days; ++day) {
    const data::ClickMetrics oracle = write_day(options, day);
    print(concat("day ", day), oracle.report());
    all.merge(oracle);
  }
  if (options.days > 1) print("all days", all.report());
  return 0;
}

}  // namespace shoal::cli
