// SPDX-License-Identifier: Apache-2.0
// Rows a second that one core finds and copies, pushes into and shrinks; uniform keys; beside absl's map,
// where there is one (Debian: libabsl-dev), from key to a row in one array.
//
//   bench/ps [--rows=20000000] [--dim=16] [--rounds=9] [--scored] [--save=FILE] [--tcp] [--cold=FOLDER]
//
// --cold: instead, a table in memory and one with a quarter of that memory and the rest in FOLDER, in turns;
// each key of a batch once, as a worker asks for them, drawn by Zipf's law with exponent 1.1.
//
// --tcp: instead, through a client and a server of one loop on this host; rows a second of the server's
// processor time, and how long a request of 4,096 keys takes.
//
// A round is 2 M keys in batches of 4,096. Medians of rounds that take turns; time is the processor's.
#include <fmt/core.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#ifdef SHOAL_ABSL
#include <absl/container/flat_hash_map.h>
#endif

#include "shoal/base/file_system.h"
#include "shoal/ps/client.h"
#include "shoal/ps/hash.h"
#include "shoal/ps/save.h"
#include "shoal/ps/server.h"
#include "shoal/ps/table.h"

namespace {

using shoal::ps::Table;

constexpr std::size_t kBatch = 4096, kRound = 2'000'000 / kBatch * kBatch;

struct Options {
  std::uint64_t rows = 20'000'000;
  std::uint32_t dim = 16;
  int rounds = 9;
  bool scored = false;
  bool tcp = false;
  std::string save, cold;
};

// Key number i: 63 bits, in no order.
std::uint64_t key_of(std::uint64_t i) { return shoal::ps::mixed(i + 1) >> 1; }

// Keys that are there, drawn uniformly.
std::vector<std::uint64_t> drawn(std::uint64_t rows, std::uint64_t round) {
  std::vector<std::uint64_t> keys(kRound);
  for (std::size_t i = 0; i < kRound; ++i) keys[i] = key_of(shoal::ps::mixed(round * kRound + i) % rows);
  return keys;
}

// Of this thread: what other programs do on the machine shows less.
double seconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double processor_seconds() { return seconds(CLOCK_THREAD_CPUTIME_ID); }

struct Timed {
  std::string name;
  std::vector<double> rates = {};

  template <class Act>
  void time(double rows, const Act& act) {
    const double begin = processor_seconds();
    act();
    rates.push_back(rows / (processor_seconds() - begin));
  }
  double median() {
    std::ranges::sort(rates);
    return rates[rates.size() / 2];
  }
  void print() {
    const double middle = median();
    fmt::print("{:<28} {:7.2f} M rows/s   ({:.2f} to {:.2f}, {} rounds)\n", name, middle / 1e6,
               rates.front() / 1e6, rates.back() / 1e6, rates.size());
  }
};

template <class Act>
void in_batches(const std::vector<std::uint64_t>& keys, const Act& act) {
  for (std::size_t at = 0; at < keys.size(); at += kBatch) act(std::span(keys).subspan(at, kBatch));
}

shoal::ps::Definition definition(const Options& options) {
  shoal::ps::Definition definition = {
      .name = "bench", .parts = {{.width = options.dim, .optimizer = {.rule = shoal::ps::RowRule::Adagrad}}}};
  definition.scored = options.scored;
  if (options.scored) definition.life = {.decay = 0.98f, .min_score = 0.001f, .max_unseen_days = 30};
  return definition;
}

// Makes all rows through `push`.
template <class PushTo>
void insert_all(const Options& options, const PushTo& push) {
  std::vector<std::uint64_t> keys(kBatch);
  const std::vector<float> gradients(kBatch * options.dim, 0.01f);
  for (std::uint64_t i = 0; i < options.rows; i += kBatch) {
    const std::size_t count = std::min<std::uint64_t>(kBatch, options.rows - i);
    for (std::size_t j = 0; j < count; ++j) keys[j] = key_of(i + j);
    push(
        {.keys = std::span(keys).first(count), .gradients = std::span(gradients).first(count * options.dim)});
  }
}

Table made_table(const Options& options) {
  Table table(definition(options));
  Timed insert{"insert (push of new keys)"};
  insert.time(static_cast<double>(options.rows),
              [&] { insert_all(options, [&](const shoal::ps::Push& push) { table.push(push); }); });
  insert.print();
  fmt::print("{} rows of {} bytes, {:.2f} bytes of index a key\n", table.num_rows(), table.bytes_a_row(),
             static_cast<double>(table.index_bytes()) / static_cast<double>(table.num_rows()));
  return table;
}

#ifdef SHOAL_ABSL
struct Absl {
  absl::flat_hash_map<std::uint64_t, std::uint32_t> slots;
  shoal::ps::Arena rows;
  std::size_t bytes;
  explicit Absl(const Options& options)
      : rows({2 * options.dim * sizeof(float)}), bytes(options.dim * sizeof(float)) {
    slots.reserve(options.rows);
    shoal::ps::Slots taken;
    for (std::uint64_t i = 0; i < options.rows; ++i) {
      const std::uint32_t slot = slots[key_of(i)] = taken.take(rows);
      std::memset(rows.at(slot), 0, rows.stride());
    }
  }
  void pull(std::span<const std::uint64_t> keys, float* to, std::size_t dim) const {
    for (const std::uint64_t key : keys) {
      std::memcpy(to, rows.at(slots.find(key)->second), bytes);
      to += dim;
    }
  }
  void pull_prefetched(std::span<const std::uint64_t> keys, float* to, std::size_t dim) const {
    constexpr std::size_t kAhead = 16;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i + kAhead < keys.size()) slots.prefetch(keys[i + kAhead]);
      std::memcpy(to, rows.at(slots.find(keys[i])->second), bytes);
      to += dim;
    }
  }
};
#endif

// Rows a second of the server's one thread: what the process used and this thread did not.
void bench_tcp(const Options& options) {
  const shoal::rendezvous::Key key = shoal::rendezvous::make_key();
  const shoal::ps::Server server(key, {});
  shoal::ps::Client client(key, server.endpoints());
  const auto table = client.create(definition(options));
  insert_all(options, [&](const shoal::ps::Push& push) { client.push(table, push); });
  std::vector<float> rows(kBatch * options.dim);
  const std::vector<float> gradients(kBatch * options.dim, 0.01f);
  Timed pull{"TCP pull, a server core"}, push{"TCP push, a server core"};
  std::vector<double> waits;
  const auto server_seconds = [] { return seconds(CLOCK_PROCESS_CPUTIME_ID) - processor_seconds(); };
  const auto time = [&](Timed& timed, const auto& keys, const auto& act) {
    const double begin = server_seconds();
    in_batches(keys, act);
    timed.rates.push_back(kRound / (server_seconds() - begin));
  };
  for (int round = 0; round < options.rounds; ++round) {
    const auto keys = drawn(options.rows, static_cast<std::uint64_t>(round));
    time(pull, keys, [&](auto batch) {
      const double begin = seconds(CLOCK_MONOTONIC);
      client.pull(table, batch, rows);
      waits.push_back(seconds(CLOCK_MONOTONIC) - begin);
    });
    time(push, keys, [&](auto batch) { client.push(table, {.keys = batch, .gradients = gradients}); });
  }
  pull.print();
  push.print();
  std::ranges::sort(waits);
  fmt::print("pull of {} keys: median {:.2f} ms, p99 {:.2f} ms\n", kBatch, 1e3 * waits[waits.size() / 2],
             1e3 * waits[waits.size() * 99 / 100]);
}

// Of this process, at the moment.
std::int64_t resident_bytes() {
  std::int64_t pages = 0, all = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// Batches of Zipf's law, each key once in its batch.
std::vector<std::vector<std::uint64_t>> zipf_batches(std::uint64_t rows, std::uint64_t round) {
  // By inversion of the continuous law: near enough for how often what is asked for.
  constexpr double kExponent = 1.1, kPower = 1 - kExponent;
  const double last = std::pow(static_cast<double>(rows) + 0.5, kPower), first = std::pow(0.5, kPower);
  std::vector<std::vector<std::uint64_t>> batches(kRound / kBatch);
  std::uint64_t drawn = round * kRound;
  for (auto& batch : batches) {
    for (std::size_t i = 0; i < kBatch; ++i) {
      const double uniform = static_cast<double>(shoal::ps::mixed(++drawn) >> 11) * 0x1p-53;
      const double rank = std::pow(first + uniform * (last - first), 1 / kPower);
      batch.push_back(key_of(std::min(rows - 1, static_cast<std::uint64_t>(std::max(0.0, rank - 0.5)))));
    }
    std::ranges::sort(batch);
    batch.erase(std::unique(batch.begin(), batch.end()), batch.end());
  }
  return batches;
}

void bench_cold(const Options& options) {
  Table warm(definition(options));
  insert_all(options, [&](const shoal::ps::Push& push) { warm.push(push); });
  const std::int64_t limit = warm.memory_bytes() / 4, before = resident_bytes();
  const auto disk = shoal::ps::open_rocksdb(options.cold);
  Table cold(definition(options), {.store = disk->store(limit / 4), .memory_bytes = limit});
  insert_all(options, [&](const shoal::ps::Push& push) { cold.push(push); });
  fmt::print("after all rows were made the process had grown by {} MB\n",
             (resident_bytes() - before) / 1'000'000);
  std::vector<float> rows(kBatch * options.dim);
  const std::vector<float> gradients(kBatch * options.dim, 0.01f);
  Timed pull{"in memory, pull"}, push{"in memory, push"}, cold_pull{"on disk, pull"},
      cold_push{"on disk, push"};
  std::int64_t most = 0, grown = 0;
  for (int round = 0; round < options.rounds; ++round) {
    const auto batches = zipf_batches(options.rows, static_cast<std::uint64_t>(round));
    double count = 0;
    for (const auto& batch : batches) count += static_cast<double>(batch.size());
    const auto time = [&](Timed& timed, const auto& act) {
      // All threads: RocksDB has some of its own.
      const double begin = seconds(CLOCK_PROCESS_CPUTIME_ID);
      for (const auto& batch : batches) act(std::span(batch), batch.size() * options.dim);
      timed.rates.push_back(count / (seconds(CLOCK_PROCESS_CPUTIME_ID) - begin));
    };
    const auto pull_from = [&](const Table& table) {
      return [&](auto keys, std::size_t size) { table.pull(keys, std::span(rows).first(size)); };
    };
    const auto push_to = [&](Table& table) {
      return [&](auto keys, std::size_t size) {
        table.push({.keys = keys, .gradients = std::span(gradients).first(size)});
      };
    };
    time(pull, pull_from(warm));
    time(push, push_to(warm));
    time(cold_pull, pull_from(cold));
    time(cold_push, push_to(cold));
    most = std::max(most, cold.memory_bytes());
    grown = std::max(grown,
                     resident_bytes() - before - static_cast<std::int64_t>(kRound * sizeof(std::uint64_t)));
  }
  for (Timed* timed : {&pull, &cold_pull, &push, &cold_push}) timed->print();
  fmt::print("{} of {} rows on disk; pull {:.2f}, push {:.2f}, both {:.2f} of the rate in memory\n",
             cold.num_cold_rows(), cold.num_rows(), cold_pull.median() / pull.median(),
             cold_push.median() / push.median(),
             (1 / pull.median() + 1 / push.median()) / (1 / cold_pull.median() + 1 / cold_push.median()));
  fmt::print("memory: limit {} MB, table {} MB, the process grew by {} MB\n", limit / 1'000'000,
             most / 1'000'000, (resident_bytes() - before) / 1'000'000);
  fmt::print("digests {}\n", cold.digest() == warm.digest() ? "equal" : "DIFFER");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto value = [&] { return std::stoull(std::string(argument.substr(argument.find('=') + 1))); };
    if (argument.starts_with("--rows="))
      options.rows = value();
    else if (argument.starts_with("--dim="))
      options.dim = static_cast<std::uint32_t>(value());
    else if (argument.starts_with("--rounds="))
      options.rounds = static_cast<int>(value());
    else if (argument.starts_with("--save="))
      options.save = argument.substr(7);
    else if (argument.starts_with("--cold="))
      options.cold = argument.substr(7);
    else if (argument == "--tcp")
      options.tcp = true;
    else if (argument == "--scored")
      options.scored = true;
    else {
      fmt::print(stderr,
                 "usage: ps [--rows=20000000] [--dim=16] [--rounds=9] [--scored] [--save=FILE] [--tcp] "
                 "[--cold=FOLDER]\n");
      return 2;
    }
  }
  if (!options.cold.empty()) {
    bench_cold(options);
    return 0;
  }
  if (options.tcp) {
    bench_tcp(options);
    return 0;
  }
  Table table = made_table(options);
  std::vector<float> rows(kBatch * options.dim);
  const std::vector<float> gradients(kBatch * options.dim, 0.01f);
  Timed pull{"find and copy"}, push{"Adagrad push"};
#ifdef SHOAL_ABSL
  const Absl absl(options);
  Timed plain{"absl find and copy"}, prefetched{"absl, prefetched"};
#endif
  for (int round = 0; round < options.rounds; ++round) {
    const auto keys = drawn(options.rows, static_cast<std::uint64_t>(round));
    pull.time(kRound, [&] { in_batches(keys, [&](auto batch) { table.pull(batch, rows); }); });
    push.time(kRound, [&] {
      in_batches(keys, [&](auto batch) { table.push({.keys = batch, .gradients = gradients}); });
    });
#ifdef SHOAL_ABSL
    plain.time(kRound,
               [&] { in_batches(keys, [&](auto batch) { absl.pull(batch, rows.data(), options.dim); }); });
    prefetched.time(kRound, [&] {
      in_batches(keys, [&](auto batch) { absl.pull_prefetched(batch, rows.data(), options.dim); });
    });
#endif
  }
  pull.print();
  push.print();
#ifdef SHOAL_ABSL
  plain.print();
  prefetched.print();
  fmt::print("find and copy ÷ absl: {:.2f}, ÷ absl prefetched: {:.2f}\n", pull.median() / plain.median(),
             pull.median() / prefetched.median());
#endif
  if (!options.save.empty()) {
    shoal::DiskFileSystem files;
    Timed saving{"save, full"}, loading{"load, full"};
    shoal::ps::SaveReport report;
    const double count = static_cast<double>(table.num_rows());
    saving.time(count, [&] { report = shoal::ps::save(table, files, options.save, {.origin = 1}); });
    Table loaded(table.definition());
    loading.time(count,
                 [&] { shoal::ps::load(loaded, files, std::vector<std::filesystem::path>{options.save}); });
    files.remove(options.save);
    saving.print();
    loading.print();
    const double megabytes = static_cast<double>(report.bytes) / 1e6 / count;
    fmt::print("save {:.0f} MB/s, load {:.0f} MB/s; digests {}\n", saving.median() * megabytes,
               loading.median() * megabytes, loaded.digest() == table.digest() ? "equal" : "DIFFER");
  }
  if (options.scored) {
    Timed shrink{"shrink, nothing expires"};
    for (int round = 0; round < 3; ++round)
      shrink.time(static_cast<double>(table.num_rows()), [&] { table.shrink(); });
    shrink.print();
  }
  return 0;
}
