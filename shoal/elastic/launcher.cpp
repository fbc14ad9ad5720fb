// SPDX-License-Identifier: Apache-2.0
// When a rank has failed, here or elsewhere:
//
//   0 s     what is known of all ranks is noted
//   0.3 s   the others had time to say what they saw; SIGTERM to those that still run
//   1.5 s   SIGKILL to them and to all that they started
//
// When the launcher itself gets SIGINT, SIGTERM or SIGHUP it passes that on, and gives ranks 30 s to save
// what they have; a second one ends them at once.
#include "shoal/elastic/launcher.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/elastic/culprit.h"
#include "shoal/elastic/hosts.h"
#include "shoal/elastic/job_file.h"
#include "shoal/elastic/local_rank.h"
#include "shoal/elastic/machine.h"
#include "shoal/elastic/process.h"
#include "shoal/elastic/standstill.h"
#include "shoal/rendezvous/deadline.h"

namespace shoal::elastic {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using rendezvous::Clock;

static constexpr std::chrono::milliseconds kLastWords = 300ms, kTerminate = 1500ms, kGrace = 30s,
                                           kShortestServer = 200ms;

namespace {

class Launcher {
 public:
  Launcher(const Launch& launch, std::vector<std::string> environment)
      : launch_(launch), environment_(std::move(environment)), hosts_(launch), cores_(usable_cores()) {
    key_ = rendezvous::descriptor_of(hosts_.key());
    const sigset_t watched = blocked_signals();
    signals_ = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    SHOAL_CHECK(signals_ >= 0, Infeasible, "run: no more descriptors: ", std::strerror(errno));
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  ~Launcher() {
    if (more_) remove_job_file(launch_.job_folder);
    end_all();
    close(key_);
    close(signals_);
  }

  int run();

 private:
  void begin(int attempt);
  void start_rank(int local, int attempt);
  Rank started_server(int number) const;
  void start_more_servers();
  Command command_of(const Rank& rank, int local, int attempt) const;
  void watch();
  int patience() const;
  void take_signals();
  void reap();
  bool is_survived(const Rank& server) const;
  void fail_here(const std::string& why);
  void advance_end();
  void signal_all(int signal);
  bool all_ended() const;
  void end_all();
  Hosts::Next conclude();

  const Launch& launch_;
  const std::vector<std::string> environment_;
  Hosts hosts_;
  const std::vector<int> cores_;
  int key_ = -1, signals_ = -1;
  const pid_t guardian_ = getppid();
  int attempt_ = 0;
  std::vector<Rank> ranks_;
  std::vector<Rank> servers_;   // of this host: processes alone, with a number as their rank, and no flight
  int next_server_ = 0;         // the number of one that is asked for
  std::string server_failure_;  // of this attempt; empty: none
  std::optional<MoreServers> more_;
  std::int64_t killed_for_memory_ = 0;
  // How this attempt ends: since when, why (empty: a rank's failure), and what has been done about it.
  std::optional<Clock::time_point> ending_;
  std::string why_;
  int passed_on_ = 0;  // the signal that the launcher got
  bool terminated_ = false, killed_ = false;
  Standstill standstill_;
};

void Launcher::begin(int attempt) {
  attempt_ = attempt;
  ending_.reset();
  why_.clear();
  terminated_ = killed_ = false;
  killed_for_memory_ = num_killed_for_memory();
  hosts_.begin_attempt(attempt);
  server_failure_.clear();
  servers_.clear();
  for (int server = launch_.host; server < launch_.servers; server += launch_.num_hosts)
    servers_.push_back(started_server(server));
  next_server_ = launch_.servers;
  if (launch_.host == 0 && launch_.servers > 0 && !launch_.job_folder.empty()) {
    const RunningJob job = hosts_.running_job();
    write_job_file(launch_.job_folder, job);
    if (!more_) more_.emplace(job);
  }
  ranks_ = std::vector<Rank>(static_cast<std::size_t>(launch_.ranks));
  for (int local = 0; local < launch_.ranks; ++local) start_rank(local, attempt);
}

Rank Launcher::started_server(int number) const {
  const std::string prefix = concat("[server ", number, "] ");
  Rank server = {.rank = number, .out = Lines(prefix), .err = Lines(prefix), .begun = Clock::now()};
  auto named = variables_of_job(environment_, hosts_, key_, attempt_, launch_.limit);
  named["SHOAL_SERVER"] = std::to_string(number);
  named["SHOAL_SERVERS"] = std::to_string(launch_.servers);
  named.try_emplace("OMP_NUM_THREADS", "1");
  Command command = {.words = launch_.server_command, .inherited = {key_}};
  for (const auto& [name, value] : named) command.environment.push_back(concat(name, "=", value));
  server.started = start(command);
  return server;
}

void Launcher::start_more_servers() {
  while (more_ && more_->take()) {
    if (ending_ || all_ended()) continue;
    servers_.push_back(started_server(next_server_));
    more_->told(next_server_++);
  }
}

Command Launcher::command_of(const Rank& rank, int local, int attempt) const {
  auto variables = variables_of_job(environment_, hosts_, key_, attempt_, launch_.limit);
  const int num_cores = static_cast<int>(cores_.size());
  variables.try_emplace("OMP_NUM_THREADS", std::to_string(std::max(1, num_cores / launch_.ranks)));
  variables.try_emplace("PYTHONUNBUFFERED", "1");
  const std::pair<const char*, std::string> own[] = {
      {"RANK", std::to_string(rank.rank)},
      {"WORLD_SIZE", std::to_string(hosts_.world_size())},
      {"LOCAL_RANK", std::to_string(local)},
      {"LOCAL_WORLD_SIZE", std::to_string(launch_.ranks)},
      {"GROUP_RANK", std::to_string(launch_.host)},
      {"SHOAL_SERVERS", std::to_string(launch_.servers)},
      {"MASTER_ADDR", hosts_.master_address()},
      {"MASTER_PORT", std::to_string(hosts_.master_port())},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(launch_.max_restarts)},
      {"SHOAL_FLIGHT_DESCRIPTOR", std::to_string(rank.flight->descriptor())},
  };
  for (const auto& [name, value] : own) variables[name] = value;
  Command command = {.words = launch_.command, .inherited = {key_, rank.flight->descriptor()}};
  for (const auto& [name, value] : variables) command.environment.push_back(concat(name, "=", value));
  if (launch_.pin_cores) {
    const int first = local * num_cores / launch_.ranks, last = (local + 1) * num_cores / launch_.ranks;
    for (int i = first; i < std::max(last, first + 1); ++i)
      command.cores.push_back(cores_[static_cast<std::size_t>(i % num_cores)]);
  }
  return command;
}

void Launcher::start_rank(int local, int attempt) {
  Rank& rank = ranks_[static_cast<std::size_t>(local)];
  rank.rank = hosts_.first_rank() + local;
  rank.flight = std::make_unique<Flight>();
  const std::string prefix = concat("[", rank.rank, "] ");
  rank.out = Lines(prefix);
  rank.err = Lines(prefix);
  if (!launch_.log_folder.empty()) open_log(rank, launch_.log_folder / concat("attempt_", attempt));
  rank.started = start(command_of(rank, local, attempt));
  rank.report = {.rank = rank.rank, .host = hosts_.name(), .process = rank.started.process};
}

bool Launcher::all_ended() const {
  return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.status.has_value(); });
}

// Milliseconds until something is due, or to be looked at; -1: never.
int Launcher::patience() const {
  if (!ending_ || killed_) return ending_ ? -1 : Standstill::kLook;
  const auto limit = passed_on_ != 0 ? kGrace : terminated_ ? kTerminate : kLastWords;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*ending_ + limit - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

// Returns when all ranks of this host have ended, and, if all goes well, those of the others.
void Launcher::watch() {
  bool announced = false;
  for (;;) {
    if (all_ended()) {
      if (ending_) break;
      if (!std::exchange(announced, true)) hosts_.announce_done();
      if (hosts_.all_done()) break;
    }
    std::vector<pollfd> wanted = {{signals_, POLLIN, 0}, {hosts_.event(), POLLIN, 0}};
    for (const auto* processes : {&ranks_, &servers_})
      for (const Rank& process : *processes) {
        wanted.push_back({process.started.out, POLLIN, 0});
        wanted.push_back({process.started.err, POLLIN, 0});
      }
    if (more_) wanted.push_back({more_->event(), POLLIN, 0});
    poll(wanted.data(), wanted.size(), patience());
    start_more_servers();
    for (Rank& rank : ranks_) take_output(rank);
    for (Rank& server : servers_) take_output(server);
    take_signals();
    reap();
    std::string why = hosts_.ended_elsewhere();
    if (why.empty() && launch_.num_hosts == 1) why = standstill_.look(ranks_);
    if (!why.empty() && !ending_) fail_here(why);
    advance_end();
  }
  for (Rank& rank : ranks_) take_rest(rank);
}

void Launcher::take_signals() {
  signalfd_siginfo received = {};
  while (read(signals_, &received, sizeof received) == static_cast<ssize_t>(sizeof received)) {
    const auto signal = static_cast<int>(received.ssi_signo);
    if (signal == SIGCHLD) continue;
    const bool ends = signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
    if (!ends) {
      signal_all(signal);
      continue;
    }
    const bool guardian_died = getppid() != guardian_;
    if (passed_on_ != 0 || guardian_died) {
      signal_all(SIGKILL);
      killed_ = true;
    } else {
      signal_all(signal);
    }
    passed_on_ = signal;
    if (!ending_) ending_ = Clock::now();
  }
}

void Launcher::reap() {
  int status = 0;
  for (pid_t process; (process = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto process_of = [](const Rank& one) { return one.started.process; };
    if (const auto server = std::ranges::find(servers_, process, process_of); server != servers_.end()) {
      server->status = status;
      take_rest(*server);
      if (ending_ || (all_ended() && hosts_.all_done())) continue;
      const std::string how = concat("server ", server->rank, ": ", how_it_ended(status));
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        print(STDERR_FILENO, concat("shoal run: server ", server->rank, " has left\n"));
        continue;
      }
      if (is_survived(*server)) {
        print(STDERR_FILENO,
              concat("shoal run: ", how,
                     "; training goes on with the copies of its rows, and it is started again\n"));
        *server = started_server(server->rank);
        continue;
      }
      server_failure_ = how;
      fail_here(server_failure_);
      hosts_.announce_server_failure(server_failure_);
      continue;
    }
    const auto rank = std::ranges::find(ranks_, process, process_of);
    if (rank == ranks_.end()) continue;  // what a rank had started and left behind
    rank->status = status;
    if (!rank->noted || (ending_ && !terminated_)) note(*rank, killed_for_memory_);
    const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (!failed || ending_) continue;
    const std::string why = concat("rank ", rank->rank, ": ", how_it_ended(status));
    fail_here(why);
    hosts_.announce_end(why);
  }
}

// Another one has its rows; one that ends as soon as it was started would only do so again.
bool Launcher::is_survived(const Rank& server) const {
  return launch_.servers_have_copies && WIFSIGNALED(*server.status) &&
         Clock::now() - server.begun > kShortestServer &&
         (std::ssize(servers_) < next_server_ ||  // the others are elsewhere
          std::ranges::any_of(servers_, [](const Rank& other) { return !other.status; }));
}

void Launcher::fail_here(const std::string& why) {
  ending_ = Clock::now();
  why_ = why;
  for (Rank& rank : ranks_)
    if (!rank.status) note(rank, killed_for_memory_);
}

void Launcher::advance_end() {
  if (!ending_) return;
  const auto since = Clock::now() - *ending_;
  if (passed_on_ == 0 && !terminated_ && since >= kLastWords) {
    signal_all(SIGTERM);
    terminated_ = true;
  }
  if (!killed_ && since >= (passed_on_ != 0 ? std::chrono::nanoseconds(kGrace) : kTerminate)) {
    signal_all(SIGKILL);
    killed_ = true;
  }
}

void Launcher::signal_all(int signal) {
  for (const Rank& rank : ranks_)
    if (!rank.status && rank.started.process > 0) kill(-rank.started.process, signal);
}

void Launcher::end_all() {
  signal_all(SIGKILL);
  for (const Rank& server : servers_)
    if (!server.status && server.started.process > 0) kill(-server.started.process, SIGKILL);
  end_descendants();
  for (auto* processes : {&ranks_, &servers_})
    for (Rank& process : *processes)
      for (int* descriptor : {&process.started.out, &process.started.err, &process.log})
        if (*descriptor >= 0) close(std::exchange(*descriptor, -1));
}

Hosts::Next Launcher::conclude() {
  std::vector<RankReport> reports;
  for (Rank& rank : ranks_) {
    for (const Lines* lines : {&rank.out, &rank.err})
      rank.report.tail.insert(rank.report.tail.end(), lines->last().begin(), lines->last().end());
    reports.push_back(rank.report);
  }
  if (!launch_.log_folder.empty())
    for (const Rank& rank : ranks_) dump_flight(rank, launch_.log_folder / concat("attempt_", attempt_));
  if (launch_.host != 0) {
    const Hosts::Next next = hosts_.hear(to_text(reports));
    if (!next.again)
      print(STDERR_FILENO, concat("shoal run: ended: ", next.why, "; seen first on this host: ", why_, "\n"));
    return next;
  }
  const auto [texts, lost] = hosts_.gather(to_text(reports));
  reports.clear();
  for (const std::string& text : texts)
    for (RankReport& rank : reports_of(text)) reports.push_back(std::move(rank));
  if (server_failure_.empty()) server_failure_ = hosts_.server_failure();
  // What the ranks of a lost host did nobody knows: the others have only seen that it went.
  const Culprit culprit = !server_failure_.empty() ? Culprit{.why = server_failure_}
                          : lost.empty() ? culprit_of(reports)
                                         : Culprit{.why = concat(lost, " lost; seen first: ", why_)};
  Hosts::Next next = {.why = verdict_of(culprit)};
  std::string text = summary_of(reports, culprit);
  if (lost.empty()) {
    const Restart restart = decide_restart(attempt_, launch_.max_restarts, reports, culprit);
    next.again = restart.again;
    if (!restart.why.empty()) text += concat("shoal run: ", restart.why, "\n");
  }
  for (const RankReport& rank : reports)
    if (!culprit.ranks.empty() && rank.rank == culprit.ranks[0] && rank.ended && rank.code != 0)
      next.code = rank.by_signal ? 128 + rank.code : rank.code;
  print(STDERR_FILENO, text);
  hosts_.tell(next);
  return next;
}

int Launcher::run() {
  for (int attempt = 0;; ++attempt) {
    begin(attempt);
    watch();
    if (passed_on_ != 0) {
      end_all();
      return 128 + passed_on_;
    }
    if (!ending_) {
      end_all();
      hosts_.leave();
      return 0;
    }
    end_all();
    const Hosts::Next next = conclude();
    if (!next.again) return next.code;
  }
}

}  // namespace

int run(const Launch& launch, const std::vector<std::string>& environment) {
  check(launch);
  check_machine(launch.ranks);
  return Launcher(launch, environment).run();
}

}  // namespace shoal::elastic
