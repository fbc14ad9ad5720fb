// SPDX-License-Identifier: Apache-2.0
// Uniform keys of rows that are there. In process by the processor time of the thread that asks; of a server by
// that of its one thread, which is what the process used and the asking thread did not.
#include "shoal/cli/bench_ps.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/counts.h"
#include "shoal/ps/client.h"
#include "shoal/ps/hash.h"
#include "shoal/ps/server.h"
#include "shoal/ps/table.h"
#include "shoal/rendezvous/key.h"
#include "shoal/rendezvous/memory_store.h"

namespace shoal::cli {

static constexpr std::array<std::string_view, 2> kTableOps = {"pull", "push"},
                                                 kTableFormats = {"csv", "text"};
static constexpr std::array<std::string_view, 3> kTransports = {"memory", "tcp", "shm"};

// "memory, tcp and shm"
static std::string words_of(std::span<const std::string_view> valid) {
  std::string text(valid[0]);
  for (std::size_t i = 1; i < valid.size(); ++i)
    text += concat(i + 1 < valid.size() ? ", " : " and ", valid[i]);
  return text;
}

// What stands between the commas, all of which is among `valid`.
static std::vector<std::string> chosen(const std::string& text, std::span<const std::string_view> valid,
                                       const char* option) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    SHOAL_CHECK(std::ranges::find(valid, names.back()) != valid.end(), InvalidInput, option, " has \"",
                names.back(), "\"; it takes ", words_of(valid));
    begin = end + 1;
  }
  return names;
}

static std::uint64_t rows_in(const std::string& text) { return count_in("--rows", text, "2G"); }

void check(const BenchPs& options) {
  chosen(options.op, kTableOps, "--op");
  chosen(options.transport, kTransports, "--transport");
  SHOAL_CHECK(chosen(options.format, kTableFormats, "--format").size() == 1, InvalidInput, "--format is ",
              options.format, "; it takes csv or text");
  rows_in(options.rows);
  const auto must = [](bool holds, const char* name, std::int64_t value, const char* wanted) {
    SHOAL_CHECK(holds, InvalidInput, name, " is ", value, ", not ", wanted);
  };
  must(options.dim >= 1 && options.dim <= 4096, "--dim", options.dim, "1 to 4096");
  must(options.batch >= 1 && options.batch <= 1 << 20, "--batch", options.batch, "1 to 1048576");
  must(options.parts >= 1 && options.parts <= 1024, "--parts", options.parts, "1 to 1024");
  must(options.repeats >= 1, "--repeats", options.repeats, "1 or more");
}

static double seconds(clockid_t clock) {
  timespec now = {};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
static double of_thread() { return seconds(CLOCK_THREAD_CPUTIME_ID); }
static double of_others() { return seconds(CLOCK_PROCESS_CPUTIME_ID) - of_thread(); }

namespace {

// Where rows are, and the clock of the core that works on them.
struct Tables {
  std::function<void(std::span<const std::uint64_t>, std::span<float>)> pull;
  std::function<void(const ps::Push&)> push;
  double (*clock)();
  std::optional<double> index_bytes_per_key;  // where it can be seen
};

struct Measured {
  double rows_per_second = 0, p99_us = 0;
};

}  // namespace

// 63 bits, in no order.
static std::uint64_t key_of(std::uint64_t i) { return ps::mixed(i + 1) >> 1; }

static void make_rows(const BenchPs& options, const Tables& target) {
  const std::uint64_t rows = rows_in(options.rows);
  const auto batch = static_cast<std::uint64_t>(options.batch);
  std::vector<std::uint64_t> keys;
  const std::vector<float> gradients(batch * options.dim, 0.01f);
  for (std::uint64_t i = 0; i < rows; i += batch) {
    keys.clear();
    for (std::uint64_t j = i; j < std::min(rows, i + batch); ++j) keys.push_back(key_of(j));
    target.push({.keys = keys, .gradients = std::span(gradients).first(keys.size() * options.dim)});
  }
}

static Measured measured(const BenchPs& options, const std::string& op, const Tables& target) {
  constexpr std::uint64_t kKeys = 500'000;  // of a repeat, about
  const std::uint64_t rows = rows_in(options.rows);
  const auto batch = static_cast<std::uint64_t>(options.batch);
  const std::uint64_t batches = kKeys / batch + 1;
  std::vector<std::uint64_t> keys(batches * batch);
  std::vector<float> values(batch * options.dim);
  const std::vector<float> gradients(values.size(), 0.01f);
  std::vector<double> rates, waits;
  std::uint64_t drawn = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (std::uint64_t& key : keys) key = key_of(ps::mixed(++drawn) % rows);
    const double begin = target.clock();
    for (std::uint64_t i = 0; i < batches; ++i) {
      const auto of_batch = std::span(keys).subspan(i * batch, batch);
      const double asked = seconds(CLOCK_MONOTONIC);
      if (op == "pull")
        target.pull(of_batch, values);
      else
        target.push({.keys = of_batch, .gradients = gradients});
      waits.push_back(seconds(CLOCK_MONOTONIC) - asked);
    }
    rates.push_back(static_cast<double>(keys.size()) / (target.clock() - begin));
  }
  std::ranges::sort(rates);
  std::ranges::sort(waits);
  return {.rows_per_second = rates[rates.size() / 2], .p99_us = 1e6 * waits[waits.size() * 99 / 100]};
}

static void print(const BenchPs& options, const std::string& transport, const Tables& target,
                  std::int64_t bytes_per_row) {
  for (const std::string& op : chosen(options.op, kTableOps, "--op")) {
    const Measured row = measured(options, op, target);
    std::array<char, 32> index = {'-', 0};
    if (target.index_bytes_per_key)
      std::snprintf(index.data(), index.size(), "%.2f", *target.index_bytes_per_key);
    const char* const format = options.format == "csv"
                                   ? "%s,%s,%llu,%u,%lld,%.0f,%.1f,%s,%lld\n"
                                   : "%-4s %-9s %12llu %5u %8lld %24.0f %10.1f %19s %13lld\n";
    std::printf(format, op.c_str(), transport.c_str(), static_cast<unsigned long long>(rows_in(options.rows)),
                options.dim, static_cast<long long>(options.batch), row.rows_per_second, row.p99_us,
                index.data(), static_cast<long long>(bytes_per_row));
    std::fflush(stdout);
  }
}

int bench_ps(const BenchPs& options) {
  const ps::Definition definition = {
      .name = "bench", .parts = {{.width = options.dim, .optimizer = {.rule = ps::RowRule::Adagrad}}}};
  std::puts(options.format == "csv"
                ? "op,transport,rows,dim,batch,rows_per_second_per_core,p99_us,"
                  "index_bytes_per_key,bytes_per_row"
                : "op   transport         rows   dim    batch rows_per_second_per_core     "
                  "p99_us index_bytes_per_key bytes_per_row");
  for (const std::string& transport : chosen(options.transport, kTransports, "--transport")) {
    if (transport == "memory") {
      ps::Table table(definition);
      Tables target = {.pull = [&](auto keys, auto rows) { table.pull(keys, rows); },
                       .push = [&](const ps::Push& push) { table.push(push); },
                       .clock = of_thread};
      make_rows(options, target);
      target.index_bytes_per_key =
          static_cast<double>(table.index_bytes()) / static_cast<double>(table.num_rows());
      print(options, transport, target, table.bytes_a_row());
      continue;
    }
    const rendezvous::Key key = rendezvous::make_key();
    rendezvous::MemoryStore store;
    std::optional<ps::MapKeeper> maps;
    if (options.parts > 1) maps.emplace(store);
    const ps::Server server(key, {.maps = maps});
    if (maps) maps->begin(ps::first_map(server.endpoints(), {.parts = options.parts}));
    ps::Client client(key, server.endpoints(), {.shares = transport == "shm", .maps = maps});
    const auto table = client.create(definition);
    const Tables target = {.pull = [&](auto keys, auto rows) { client.pull(table, keys, rows); },
                           .push = [&](const ps::Push& push) { client.push(table, push); },
                           .clock = of_others};
    make_rows(options, target);
    print(options, transport, target, ps::Table(definition).bytes_a_row());
  }
  return 0;
}

}  // namespace shoal::cli
