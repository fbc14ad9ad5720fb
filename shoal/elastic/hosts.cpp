// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/hosts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/elastic/place.h"
#include "shoal/elastic/said.h"
#include "shoal/rendezvous/deadline.h"

namespace shoal::elastic {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""ns;
using std::chrono_literals::operator""s;
using nlohmann::json;
using rendezvous::Clock;

// Processes that compete for the cores delay a beat by tens of milliseconds.
static constexpr std::chrono::milliseconds kBeat = 200ms, kSilence = 3s;

// --- Addresses.

static sockaddr_in ipv4_of(const std::string& host) {
  const addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  SHOAL_CHECK(error == 0, InvalidInput, "run: there is no host ", in_quotes(host), ": ", gai_strerror(error),
              "; give --master-addr an address of the first host");
  const sockaddr_in address = *reinterpret_cast<const sockaddr_in*>(found->ai_addr);
  freeaddrinfo(found);
  return address;
}

static std::string text_of(const sockaddr_in& address) {
  std::array<char, INET_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  return text.data();
}

// A port that was free a moment ago, for the programs' own use.
static int free_port(const std::string& host) {
  sockaddr_in address = ipv4_of(host);
  socklen_t size = sizeof address;
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                     getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  close(socket);
  SHOAL_CHECK(bound, InvalidInput, "run: no port of ", host, " is free: ", std::strerror(error),
              "; is that an address of this host?");
  return ntohs(address.sin_port);
}

// The interface that packets to `host` leave by.
static std::string interface_towards(const std::string& host) {
  sockaddr_in address = ipv4_of(host);
  address.sin_port = htons(9);
  socklen_t size = sizeof address;
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool found = connect(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                     getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  close(socket);
  SHOAL_CHECK(found, InvalidInput, "run: no way to ", host, ": ", std::strerror(error),
              "; is the network up, and is --master-addr right?");
  std::string name = "lo";
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return name;
  for (const ifaddrs* one = all; one; one = one->ifa_next)
    if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET &&
        reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr == address.sin_addr.s_addr)
      name = one->ifa_name;
  freeifaddrs(all);
  return name;
}

// --- Meeting.

Hosts::Hosts(const Launch& launch) : num_hosts_(launch.num_hosts), host_(launch.host) {
  const bool alone = num_hosts_ == 1;
  key_ = launch.key_file.empty() ? rendezvous::make_key() : rendezvous::read_key_file(launch.key_file);
  master_address_ = text_of(ipv4_of(launch.master_address));
  if (!launch.interface.empty()) {
    rendezvous::address_of(launch.interface);
    interface_ = launch.interface;
  } else if (!alone) {
    interface_ = interface_towards(master_address_);
  }
  const std::string address = alone ? "127.0.0.1" : master_address_;
  int port = alone ? 0 : launch.master_port;
  if (host_ == 0) {
    server_ = std::make_unique<rendezvous::TcpServer>(
        key_, rendezvous::TcpServerOptions{.address = address, .port = static_cast<std::uint16_t>(port)});
    port = server_->port();
  }
  store_address_ = concat(address, ":", port);
  store_ = connected(
      {.address = address, .port = static_cast<std::uint16_t>(port), .epoch = 0, .silence = kSilence},
      launch.arrival);
  if (alone) {
    world_size_ = launch.ranks;
    names_ = {host_name()};
    master_port_ = launch.master_port != 0 ? launch.master_port : free_port(master_address_);
  } else {
    meet(launch);
  }
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  stop_ = eventfd(0, EFD_CLOEXEC);
  SHOAL_CHECK(event_ >= 0 && stop_ >= 0, Infeasible, "run: no more descriptors: ", std::strerror(errno));
  if (!alone) watcher_ = std::thread([this] { watch(); });
}

Hosts::~Hosts() {
  eventfd_write(stop_, 1);
  if (watcher_.joinable()) watcher_.join();
  close(event_);
  close(stop_);
}

// A signal that is to end this process waits to be taken while hosts meet: there are no ranks yet to pass it
// on to.
static void check_signals() {
  sigset_t pending;
  sigpending(&pending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    SHOAL_CHECK(sigismember(&pending, signal) == 0, InvalidInput, "run: ended by signal ", signal,
                " before all hosts were there");
}

std::unique_ptr<rendezvous::TcpStore> Hosts::connected(rendezvous::TcpStoreOptions options,
                                                       std::chrono::nanoseconds limit) const {
  const Clock::time_point deadline = rendezvous::deadline_after(limit);
  for (;;) {
    options.limit = std::min<std::chrono::nanoseconds>(limit, 300ms);
    try {
      return std::make_unique<rendezvous::TcpStore>(key_, options);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Timeout) throw;
      SHOAL_CHECK(Clock::now() < deadline, Timeout, "run: nothing answered on ", options.address, ":",
                  options.port, " within ", std::chrono::duration<double>(limit).count(),
                  " s; is shoal run started on the first host, and is --master-addr its address?");
    }
    check_signals();
  }
}

std::string Hosts::word_of(int host, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::max<std::chrono::nanoseconds>(deadline - Clock::now(), 0ns);
    try {
      return store_->get(concat("host/", host), std::min<std::chrono::nanoseconds>(left, 300ms));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Timeout || Clock::now() >= deadline) throw;
    }
    check_signals();
  }
}

// How many, and their options but for the folder on a host's own disk.
static std::string servers_of(const Launch& launch) {
  std::string text = std::to_string(launch.servers);
  for (const std::string& word : launch.server_command)
    if (word.starts_with("--") && !word.starts_with("--cold-folder=")) text += concat(' ', word);
  return text;
}

void Hosts::meet(const Launch& launch) {
  const json own = {{"hosts", num_hosts_},
                    {"ranks", launch.ranks},
                    {"servers", servers_of(launch)},
                    {"name", host_name()},
                    {"process", getpid()}};
  const auto key_of = [](int host) { return concat("host/", host); };
  const std::string there = store_->compare_and_set(key_of(host_), "", own.dump());
  const auto name_of = [](const json& other) { return other.at("name").get<std::string>(); };
  SHOAL_CHECK(there == own.dump(), InvalidInput, "run: two hosts say that they are node rank ", host_, ": ",
              read_said(key_of(host_), there, name_of), " and ", host_name(),
              "; give each host a --node-rank of its own");
  if (host_ == 0) store_->set("master_port", std::to_string(free_port(master_address_)));
  const Clock::time_point deadline = rendezvous::deadline_after(launch.arrival);
  for (int host = 0; host < num_hosts_; ++host) {
    std::string text;
    try {
      text = word_of(host, deadline);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Timeout) throw;
      std::string missing;
      for (int h = host; h < num_hosts_; ++h)
        if (!store_->find(key_of(h))) missing += concat(missing.empty() ? "" : ", ", h);
      fail(ErrorKind::Timeout, "run: of ", num_hosts_, " hosts these did not come within ",
           launch.arrival.count(), " s: node rank ", missing, "; start shoal run there too");
    }
    const auto [hosts, ranks, servers] = read_said(key_of(host), text, [&](const json& other) {
      names_.push_back(name_of(other));
      return std::tuple(other.at("hosts").get<int>(), other.at("ranks").get<int>(),
                        other.at("servers").get<std::string>());
    });
    SHOAL_CHECK(hosts == num_hosts_, InvalidInput, "run: host ", names_.back(),
                " was started with --nnodes=", hosts, ", host ", host_name(), " with --nnodes=", num_hosts_,
                "; start all with the same");
    SHOAL_CHECK(servers == servers_of(launch), InvalidInput, "run: host ", names_.back(),
                " was started with servers ", servers, ", host ", host_name(), " with ", servers_of(launch),
                ", which are those of all hosts together; start all with the same");
    SHOAL_CHECK(ranks > 0, Corrupt, "run: host ", names_.back(), " says that it has ", ranks, " ranks");
    if (host < host_) first_rank_ += ranks;
    world_size_ += ranks;
  }
  master_port_ = read_said("master_port", store_->get("master_port", 5s),
                           [](const json& port) { return port.get<int>(); });
}

// --- One attempt.

// Says or asks what a host that is lost does not hear, or answers: whether it did.
static bool reached(const auto& act) {
  try {
    act();
    return true;
  } catch (const Error&) {
    return false;
  }
}

void Hosts::begin_attempt(int attempt) {
  attempt_ = attempt;
  if (server_) server_->begin_epoch(static_cast<std::uint64_t>(attempt) + 1);
  const std::lock_guard lock(mutex_);
  ended_.clear();
  all_done_ = num_hosts_ == 1;
}

RunningJob Hosts::running_job() const {
  return {.launcher = getpid(),
          .address = store_address_.substr(0, store_address_.rfind(':')),
          .port = server_->port(),
          .epoch = static_cast<std::uint64_t>(attempt_) + 1,
          .key = key_};
}

void Hosts::announce_end(const std::string& why) {
  if (num_hosts_ > 1) reached([&] { store_->compare_and_set(concat("end/", attempt_), "", why); });
}

void Hosts::announce_server_failure(const std::string& why) {
  if (num_hosts_ > 1) reached([&] { store_->compare_and_set(concat("server_failure/", attempt_), "", why); });
  announce_end(why);
}

std::string Hosts::server_failure() const {
  std::string why;
  if (num_hosts_ > 1) reached([&] { why = store_->find(concat("server_failure/", attempt_)).value_or(""); });
  return why;
}

void Hosts::announce_done() {
  if (num_hosts_ > 1) store_->add(concat("done/", attempt_), 1);
}

std::string Hosts::ended_elsewhere() {
  eventfd_t ignored = 0;
  eventfd_read(event_, &ignored);
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool Hosts::all_done() {
  const std::lock_guard lock(mutex_);
  return all_done_;
}

void Hosts::leave() {
  if (num_hosts_ == 1) return;
  const Clock::time_point deadline = Clock::now() + 3s;
  reached([&] {
    store_->set(concat("bye/", host_), "yes");
    for (int host = 1; host_ == 0 && host < num_hosts_; ++host)
      store_->get(concat("bye/", host), deadline - Clock::now());
  });
}

void Hosts::look(std::vector<std::pair<std::int64_t, Clock::time_point>>& beats) {
  store_->add(concat("beat/", host_), 1);
  const int attempt = attempt_;
  for (int host = 1; host_ == 0 && host < num_hosts_; ++host) {
    auto& [count, since] = beats[static_cast<std::size_t>(host)];
    const std::int64_t now = store_->add(concat("beat/", host), 0);
    if (now != count) {
      count = now;
      since = Clock::now();
    } else if (Clock::now() - since > kSilence) {
      store_->compare_and_set(concat("end/", attempt), "",
                              concat("host ", names_[static_cast<std::size_t>(host)], " (node rank ", host,
                                     ") has been silent for ", kSilence.count() / 1000,
                                     " s; it has ended, or the network to it is down"));
    }
  }
  const std::optional<std::string> end = store_->find(concat("end/", attempt));
  const std::optional<std::string> done = store_->find(concat("done/", attempt));
  const std::lock_guard lock(mutex_);
  if (attempt != attempt_) return;
  const bool was_over = !ended_.empty() || all_done_;
  if (end) ended_ = *end;
  all_done_ = done && *done == std::to_string(num_hosts_);
  if (!was_over && (end || all_done_)) eventfd_write(event_, 1);
}

void Hosts::watch() {
  std::vector<std::pair<std::int64_t, Clock::time_point>> beats(static_cast<std::size_t>(num_hosts_),
                                                                {0, Clock::now()});
  pollfd stop = {.fd = stop_, .events = POLLIN, .revents = 0};
  do {
    try {
      look(beats);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      if (all_done_) return;  // the first host has ended, as it may
      ended_ = concat("the first host ", names_[0], " is lost: ", error.what());
      eventfd_write(event_, 1);
      return;
    }
  } while (poll(&stop, 1, static_cast<int>(kBeat.count())) == 0);
}

// --- What comes after.

Hosts::Reports Hosts::gather(const std::string& own_report) {
  Reports reports = {.texts = {own_report}};
  const Clock::time_point deadline = Clock::now() + 4s;
  for (int host = 1; host < num_hosts_; ++host) {
    const bool is_there = reached([&] {
      reports.texts.push_back(store_->get(concat("report/", attempt_, "/", host), deadline - Clock::now()));
    });
    if (!is_there)
      reports.lost += concat(reports.lost.empty() ? "" : ", ", "host ",
                             names_[static_cast<std::size_t>(host)], " (node rank ", host, ")");
  }
  return reports;
}

void Hosts::tell(const Next& next) {
  if (num_hosts_ == 1) return;
  if (next.again) server_->begin_epoch(static_cast<std::uint64_t>(attempt_) + 2);  // before anybody asks
  store_->set(concat("next/", attempt_), next.again ? "again" : concat(next.code, " ", next.why));
  if (next.again) return;
  // They read it before the store ends with this process; a host that is lost does not.
  const Clock::time_point deadline = Clock::now() + 1s;
  for (int host = 1; host < num_hosts_; ++host)
    reached([&] { store_->get(concat("heard/", attempt_, "/", host), deadline - Clock::now()); });
}

Hosts::Next Hosts::hear(const std::string& own_report) {
  try {
    store_->set(concat("report/", attempt_, "/", host_), own_report);
    const std::string word = store_->get(concat("next/", attempt_), 15s);
    store_->set(concat("heard/", attempt_, "/", host_), "yes");
    if (word == "again") return {.again = true};
    return {.code = std::stoi(word), .why = word.substr(word.find(' ') + 1)};
  } catch (const std::exception& error) {
    return {.why = concat("the first host ", names_[0], " is lost: ", error.what())};
  }
}

std::map<std::string, std::string> variables_of_job(const std::vector<std::string>& environment,
                                                    const Hosts& hosts, int key, int attempt,
                                                    std::chrono::seconds limit) {
  std::map<std::string, std::string> variables;
  for (const std::string& variable : environment) {
    const std::size_t equals = variable.find('=');
    variables[variable.substr(0, equals)] = equals == std::string::npos ? "" : variable.substr(equals + 1);
  }
  const std::pair<const char*, std::string> job[] = {
      {"SHOAL_STORE", hosts.store_address()},         {"SHOAL_KEY_DESCRIPTOR", std::to_string(key)},
      {"SHOAL_EPOCH", std::to_string(attempt + 1)},   {"SHOAL_INTERFACE", hosts.interface()},
      {"SHOAL_LIMIT", std::to_string(limit.count())},
  };
  for (const auto& [name, value] : job) variables[name] = value;
  return variables;
}

}  // namespace shoal::elastic
