// SPDX-License-Identifier: Apache-2.0
// The command's own part: options, the processes of the ranks, and the rows.
#include "shoal/cli/bench.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "shoal/base/error.h"
#include "shoal/rendezvous/host_store.h"

namespace shoal::cli {

static double all(double) { return 1; }
static double others(double n) { return (n - 1) / n; }

// In alphabetical order. A send is one message from each even rank to the next.
static constexpr BenchOp kOps[] = {
    {"all_gather", comm::Op::AllGather, others, all},
    {"all_reduce", comm::Op::AllReduce, [](double n) { return 2 * (n - 1) / n; }, all},
    {"all_to_all", comm::Op::AllToAll, others, all},
    {"barrier", comm::Op::Barrier, all, all},
    {"broadcast", comm::Op::Broadcast, all, all},
    {"gather", comm::Op::Gather, others, [](double n) { return 1 / n; }},
    {"reduce", comm::Op::Reduce, all, [](double n) { return (n + 1) / (2 * n); }},
    {"reduce_scatter", comm::Op::ReduceScatter, others, [](double n) { return (1 + 1 / n) / 2; }},
    {"scatter", comm::Op::Scatter, others, [](double n) { return 1 / n; }},
    {"send", comm::Op::Send, all, all},
};
static constexpr std::string_view kBackends[] = {"gloo", "shm"};
static constexpr std::string_view kBuffers[] = {"allocated", "foreign"};
static constexpr std::string_view kFormats[] = {"csv", "text"};
static constexpr std::string_view kDTypes[] = {"float64", "float32", "float16", "bfloat16",
                                               "int64",   "int32",   "uint8"};

std::span<const BenchOp> bench_ops() { return kOps; }

static std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
}

static std::string listed(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += concat(text.empty() ? "" : ", ", name);
  return text;
}

static void check_one_of(std::string_view option, std::string_view value,
                         std::span<const std::string_view> valid) {
  SHOAL_CHECK(std::ranges::find(valid, value) != valid.end(), InvalidInput, option, ": there is no ", value,
              "; there are ", listed(valid));
}

std::vector<BenchOp> ops_named(const BenchComm& options) {
  if (options.op == "all") return {std::begin(kOps), std::end(kOps)};
  std::vector<std::string_view> names;
  for (const BenchOp& op : kOps) names.push_back(op.name);
  std::vector<BenchOp> ops;
  for (const std::string& name : split(options.op)) {
    check_one_of("--op", name, names);
    ops.push_back(*std::ranges::find(kOps, name, &BenchOp::name));
  }
  return ops;
}

static std::optional<std::int64_t> bytes_of_text(const std::string& text) {
  constexpr std::string_view kUnits = "KMG";
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view rest(end, text.data() + text.size());
  const std::size_t unit = rest.size() == 1 ? kUnits.find(rest[0]) : std::string_view::npos;
  if (error != std::errc() || number < 1 || (!rest.empty() && unit == std::string_view::npos))
    return std::nullopt;
  const std::int64_t scale = rest.empty() ? 1 : std::int64_t{1} << (10 * (unit + 1));
  if (number > (std::int64_t{1} << 40) / scale) return std::nullopt;
  return number * scale;
}

std::vector<std::int64_t> sizes_of(const BenchComm& options) {
  std::vector<std::int64_t> sizes;
  for (const std::string& text : split(options.sizes)) {
    const auto bytes = bytes_of_text(text);
    SHOAL_CHECK(bytes, InvalidInput, "--sizes: ", text,
                " is no size; write bytes from 1 to 1024G, as 8,1K,64M");
    sizes.push_back(*bytes);
  }
  return sizes;
}

std::vector<std::string> backends_of(const BenchComm& options) {
  if (options.compare.empty()) return {options.backend};
  return {options.backend, options.compare};
}

void check(const BenchComm& options) {
  constexpr int kMostRanks = 64;
  ops_named(options);
  sizes_of(options);
  check_one_of("--backend", options.backend, kBackends);
  if (!options.compare.empty()) check_one_of("--compare", options.compare, kBackends);
  check_one_of("--dtype", options.dtype, kDTypes);
  check_one_of("--buffers", options.buffers, kBuffers);
  check_one_of("--format", options.format, kFormats);
  SHOAL_CHECK(1 <= options.ranks && options.ranks <= kMostRanks, InvalidInput, "--ranks: wants 1 to ",
              kMostRanks, ", got ", options.ranks);
  SHOAL_CHECK(options.repeats >= 1, InvalidInput, "--repeats: wants at least 1, got ", options.repeats);
}

static constexpr const char* kColumns[] = {"op",        "backend",        "ranks",    "bytes",
                                           "median_us", "algorithm_gbps", "bus_gbps", "bound_us",
                                           "share",     "times"};
static constexpr int kWidths[] = {-14, -7, 5, 11, 11, 14, 8, 10, 6, 6};

static std::string joined(std::span<const std::string> cells, bool is_csv) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (is_csv) {
      line += concat(i == 0 ? "" : ",", cells[i]);
      continue;
    }
    const auto width = static_cast<std::size_t>(std::abs(kWidths[i]));
    const std::string gap(width > cells[i].size() ? width - cells[i].size() : 0, ' ');
    line += concat(i == 0 ? "" : "  ", kWidths[i] < 0 ? cells[i] + gap : gap + cells[i]);
  }
  return line + "\n";
}

static std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string header_of(const BenchComm& options) {
  const std::vector<std::string> cells(std::begin(kColumns), std::end(kColumns));
  return joined(cells, options.format == "csv");
}

std::string line_of(const BenchRow& row, const BenchComm& options) {
  const std::string cells[] = {row.op,
                               row.backend,
                               std::to_string(row.ranks),
                               std::to_string(row.bytes),
                               fixed(row.median_us, 2),
                               fixed(row.algorithm_gbps, 3),
                               fixed(row.bus_gbps, 3),
                               fixed(row.bound_us, 2),
                               fixed(row.share, 2),
                               row.times == 0 ? "" : fixed(row.times, row.times < 0.1 ? 5 : 2)};
  return joined(cells, options.format == "csv");
}

static std::vector<std::string> arguments_of(const BenchComm& options, int rank, int store) {
  std::vector<std::string> words = {"shoal", "bench", "comm"};
  const auto add = [&](std::string_view name, const auto& value) {
    words.push_back(concat("--", name, "=", value));
  };
  add("op", options.op);
  add("backend", options.backend);
  if (!options.compare.empty()) add("compare", options.compare);
  add("ranks", options.ranks);
  add("sizes", options.sizes);
  add("dtype", options.dtype);
  add("buffers", options.buffers);
  add("format", options.format);
  add("repeats", options.repeats);
  add("rank", rank);
  add("store", store);
  return words;
}

// Between fork and exec: only what is safe there.
[[noreturn]] static void become_rank(pid_t parent, int store, char* const* arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) {  // it has not ended meanwhile
    ::fcntl(store, F_SETFD, 0);
    ::execv("/proc/self/exe", arguments);
  }
  ::_exit(127);
}

static pid_t start_rank(const BenchComm& options, int rank, const rendezvous::HostStore& store) {
  std::vector<std::string> words = arguments_of(options, rank, store.descriptor());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  SHOAL_CHECK(child >= 0, Infeasible, "cannot start rank ", rank, ": ", std::strerror(errno));
  if (child == 0) become_rank(parent, store.descriptor(), arguments.data());
  return child;
}

namespace {

// The processes of the ranks, none of which outlives it.
class RankProcesses {
 public:
  RankProcesses(const BenchComm& options, const rendezvous::HostStore& store) {
    processes_.reserve(static_cast<std::size_t>(options.ranks));
    for (int rank = 0; rank < options.ranks; ++rank) processes_.push_back(start_rank(options, rank, store));
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() {
    for (const pid_t process : processes_)
      if (process != 0) ::kill(process, SIGKILL);
    for (const pid_t process : processes_)
      if (process != 0) ::waitpid(process, nullptr, 0);
  }

  void wait() {
    for (std::size_t left = processes_.size(); left > 0; --left) {
      int status = 0;
      pid_t ended = 0;
      do ended = ::waitpid(-1, &status, 0);
      while (ended < 0 && errno == EINTR);
      const auto process = std::ranges::find(processes_, ended);
      SHOAL_CHECK(ended > 0 && process != processes_.end(), Internal, "a process ended that is no rank");
      *process = 0;
      const auto rank = process - processes_.begin();
      SHOAL_CHECK(!WIFSIGNALED(status), PeerLost, "rank ", rank, " was ended by signal ", WTERMSIG(status),
                  " (", ::strsignal(WTERMSIG(status)), ")");
      SHOAL_CHECK(WEXITSTATUS(status) == 0, PeerLost, "rank ", rank, " failed with exit code ",
                  WEXITSTATUS(status));
    }
  }

 private:
  std::vector<pid_t> processes_;  // 0: has ended
};

}  // namespace

int bench_comm(const BenchComm& options) {
  if (options.rank >= 0) return bench_rank(options);
  const rendezvous::HostStore store;
  RankProcesses ranks(options, store);
  ranks.wait();
  return 0;
}

}  // namespace shoal::cli
