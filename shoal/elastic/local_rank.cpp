// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/local_rank.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/elastic/machine.h"

namespace shoal::elastic {

static constexpr std::size_t kCallsKept = 40;  // of a report: more than a rank can be ahead of others

void open_log(Rank& rank, const std::filesystem::path& folder) {
  if (const std::error_code error = make_folders(folder))
    fail(ErrorKind::InvalidInput, "run: cannot make the folder ", folder.string(), ": ", error.message());
  const auto path = folder / concat("rank_", rank.rank, ".log");
  rank.log = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, file_modes().file);
  SHOAL_CHECK(rank.log >= 0, InvalidInput, "run: cannot write ", path.string(), ": ", std::strerror(errno));
}

void dump_flight(const Rank& rank, const std::filesystem::path& folder) {
  const std::string text = to_text(rank.flight->read());
  DiskFileSystem()
      .create(folder / concat("flight_rank_", rank.rank, ".txt"))
      ->write(std::as_bytes(std::span(text)));
}

static void write_log(const Rank& rank, std::string_view lines) {
  while (rank.log >= 0 && !lines.empty()) {
    const ssize_t wrote = write(rank.log, lines.data(), lines.size());
    if (wrote <= 0) return;  // a full disk does not end the job
    lines.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

static void take_output(Rank& rank, int& descriptor, Lines& lines, int to) {
  std::array<char, 65536> bytes;
  // A rank that prints without end does not keep the launcher from the others.
  for (int turn = 0; descriptor >= 0 && turn < 16; ++turn) {
    const ssize_t got = read(descriptor, bytes.data(), bytes.size());
    if (got == 0) close(std::exchange(descriptor, -1));
    if (got <= 0) return;
    const std::string printed = lines.take({bytes.data(), static_cast<std::size_t>(got)});
    print(to, printed);
    write_log(rank, printed);
  }
}

void take_output(Rank& rank) {
  take_output(rank, rank.started.out, rank.out, STDOUT_FILENO);
  take_output(rank, rank.started.err, rank.err, STDERR_FILENO);
}

void take_rest(Rank& rank) {
  for (auto [descriptor, lines, to] : {std::tuple(&rank.started.out, &rank.out, STDOUT_FILENO),
                                       std::tuple(&rank.started.err, &rank.err, STDERR_FILENO)}) {
    take_output(rank, *descriptor, *lines, to);
    const std::string rest = lines->rest();
    print(to, rest);
    write_log(rank, rest);
    if (*descriptor >= 0) close(std::exchange(*descriptor, -1));
  }
}

RankReport seen_of(const Rank& rank) {
  RankReport report = rank.report;
  const FlightLog log = rank.flight->read();
  report.num_calls = log.num_calls;
  report.kind = log.kind;
  report.error = log.error;
  report.left_out = left_out(log, rank.rank);
  report.last = report.current = "";
  report.calls.clear();
  const std::size_t num_kept = std::min(log.records.size(), kCallsKept);
  for (std::size_t i = log.records.size() - num_kept; i < log.records.size(); ++i) {
    const FlightRecord& record = log.records[i];
    report.calls.emplace_back(
        concat("call ", record.number, record.group.empty() ? "" : " of " + record.group),
        comm::describe(record.call));
  }
  bool is_only_a_send = false;
  for (const FlightRecord& record : log.records) {
    if (record.state == CallState::Done) {
      report.last = describe(record);
    } else if (report.current.empty() || (is_only_a_send && record.call.op != comm::Op::Send)) {
      report.current = describe(record);
      is_only_a_send = record.call.op == comm::Op::Send;  // which waits by itself while the rank goes on
    }
  }
  if (report.current.empty() && !log.module.empty()) report.current = log.module;
  report.waits = !log.records.empty() && log.records.back().state == CallState::Waiting;
  return report;
}

void note(Rank& rank, std::int64_t killed_before) {
  RankReport& report = rank.report;
  report = seen_of(rank);
  rank.noted = true;
  report.stopped = !rank.status && is_stopped(rank.started.process);
  report.how = report.stopped ? "stopped" : "running";
  if (!rank.status) return;
  const int status = *rank.status;
  report.ended = true;
  report.by_signal = WIFSIGNALED(status);
  report.code = report.by_signal ? WTERMSIG(status) : WEXITSTATUS(status);
  report.how = how_it_ended(status);
  if (report.by_signal && report.code == SIGKILL && num_killed_for_memory() > killed_before)
    report.how += ", as the machine or the container had no more memory";
  report.when_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
}

}  // namespace shoal::elastic
