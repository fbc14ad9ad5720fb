// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/join.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/comm/hosts.h"
#include "shoal/elastic/recorded.h"
#include "shoal/elastic/said.h"
#include "shoal/rendezvous/deadline.h"
#include "shoal/rendezvous/memory_store.h"
#include "shoal/rendezvous/tcp_store.h"

namespace shoal::elastic {

using nlohmann::json;
using rendezvous::Clock;
using rendezvous::Key;

// --- Meeting.

Attendance meet(rendezvous::Store& store, const Attendant& self, std::chrono::nanoseconds limit) {
  const Place& place = self.place;
  const auto key_of = [](int rank) { return concat("join/", rank); };
  const json own = {
      {"size", place.size}, {"identity", self.identity}, {"host", self.host}, {"process", self.process}};
  const std::string there = store.compare_and_set(key_of(place.rank), "", own.dump());
  if (there != own.dump()) {
    const auto [process, host] = read_said(key_of(place.rank), there, [](const json& other) {
      return std::pair(other.at("process").get<int>(), other.at("host").get<std::string>());
    });
    fail(ErrorKind::InvalidInput, "elastic: two processes are rank ", place.rank, ": process ", process,
         " of host ", host, " and process ", self.process, " of host ", self.host,
         "; was the program started twice, or is a node rank given twice?");
  }
  Attendance all;
  const Clock::time_point deadline = rendezvous::deadline_after(limit);
  for (int rank = 0; rank < place.size; ++rank) {
    std::string text;
    try {
      text = store.get(key_of(rank), deadline - Clock::now());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Timeout) throw;
      std::string missing;
      for (int r = rank; r < place.size; ++r)
        if (!store.find(key_of(r))) missing += concat(missing.empty() ? "" : ", ", r);
      fail(ErrorKind::Timeout, "elastic: of ", place.size, " ranks these did not come within ",
           std::chrono::duration<double>(limit).count(), " s: ", missing,
           "; did they start, and do they call join?");
    }
    const int size = read_said(key_of(rank), text, [&](const json& other) {
      all.identities.push_back(other.at("identity").get<std::string>());
      all.hosts.push_back(other.at("host").get<std::string>());
      return other.at("size").get<int>();
    });
    SHOAL_CHECK(size == place.size, InvalidInput, "elastic: rank ", rank, " on host ", all.hosts.back(),
                " says that there are ", size, " ranks, rank ", place.rank, " on host ", self.host, " says ",
                place.size, "; start all hosts with the same numbers");
  }
  return all;
}

// --- The key from rank 0 to the others of this host, where no launcher of ours hands it over.

namespace {

struct Credentials {
  Key key;
  std::uint16_t port = 0;
};

constexpr ssize_t kBytes = sizeof(Credentials);

class Socket {
 public:
  Socket() : descriptor_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    SHOAL_CHECK(descriptor_ >= 0, Infeasible, "elastic: cannot make a socket: ", std::strerror(errno));
  }
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { ::close(descriptor_); }
  operator int() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

// A name without a file: it is gone with the socket.
static std::pair<sockaddr_un, socklen_t> address_of_job(const std::string& name) {
  sockaddr_un address = {.sun_family = AF_UNIX};
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

static bool is_this_user(int socket) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// What the ranks of a job on this host have in common, and no others: their parent, how often it has started
// them, and where the kernel has put its stack and its libraries, which is random and told to this user's
// processes alone: nobody else can know the name, and take it first. A parent of another user (su) tells us
// nothing either; then only the key is safe.
static std::string name_of_job(const Environment& environment) {
  std::ifstream file(concat("/proc/", getppid(), "/stat"));
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // the 22nd of all: when it started
  std::ifstream addresses(concat("/proc/", getppid(), "/auxv"), std::ios::binary);
  const std::string secret(std::istreambuf_iterator<char>(addresses), {});
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(secret.data());
  const rendezvous::Bytes32 hash = rendezvous::proof({}, "parent", std::span(bytes, secret.size()), {});
  std::ostringstream name;
  name << "shoal/" << geteuid() << '/' << getppid() << '/' << field << '/'
       << value_in(environment, "TORCHELASTIC_RESTART_COUNT") << '/' << std::hex << std::setfill('0');
  for (const std::uint8_t byte : std::span(hash).first(16)) name << std::setw(2) << int{byte};
  return std::move(name).str();
}

static std::unique_ptr<Socket> listener_of_job(const std::string& name) {
  auto listener = std::make_unique<Socket>();
  const auto [address, bytes] = address_of_job(name);
  SHOAL_CHECK(
      bind(*listener, reinterpret_cast<const sockaddr*>(&address), bytes) == 0 && listen(*listener, 128) == 0,
      InvalidInput, "elastic: two processes with the same parent are rank 0 (", std::strerror(errno), ")");
  return listener;
}

static void hand_over(const Credentials& credentials, const Socket& listener, int num,
                      Clock::time_point deadline) {
  while (num > 0) {
    pollfd wanted = {.fd = listener, .events = POLLIN, .revents = 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return;  // join names who is missing
    if (poll(&wanted, 1, static_cast<int>(std::min<std::int64_t>(left.count(), INT_MAX))) <= 0) continue;
    const Socket peer(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (peer >= 0 && is_this_user(peer) &&
        send(peer, &credentials, sizeof credentials, MSG_NOSIGNAL) == kBytes)
      --num;
  }
}

static Credentials handed_over(const std::string& name, std::chrono::nanoseconds limit) {
  const Clock::time_point deadline = rendezvous::deadline_after(limit);
  const auto [address, bytes] = address_of_job(name);
  for (;;) {
    const Socket socket;
    Credentials credentials;
    if (connect(socket, reinterpret_cast<const sockaddr*>(&address), bytes) == 0 && is_this_user(socket) &&
        recv(socket, &credentials, sizeof credentials, MSG_WAITALL) == kBytes)
      return credentials;
    SHOAL_CHECK(Clock::now() < deadline, Timeout, "elastic: rank 0 was not there within ",
                std::chrono::duration<double>(limit).count(),
                " s; ranks that have no parent in common need SHOAL_KEY_FILE");
    poll(nullptr, 0, 5);
  }
}

// --- Joining.

std::unique_ptr<comm::Communicator> Job::recorded(std::unique_ptr<comm::Communicator> communicator) {
  return elastic::recorded(std::move(communicator), *flight_, limit_);
}

static std::pair<std::string, std::uint16_t> address_and_port(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  SHOAL_CHECK(colon != std::string::npos, InvalidInput, "elastic: SHOAL_STORE is ", in_quotes(text),
              ", wanted ADDRESS:PORT");
  const Environment port = {{"SHOAL_STORE", text.substr(colon + 1)}};
  return {text.substr(0, colon), static_cast<std::uint16_t>(number_in(port, "SHOAL_STORE"))};
}

static Member member_in(const Environment& environment, rendezvous::TcpStoreOptions options) {
  const auto descriptor = static_cast<int>(number_in(environment, "SHOAL_KEY_DESCRIPTOR"));
  Member member = {.key = rendezvous::inherited_key(descriptor)};
  close(descriptor);
  std::tie(options.address, options.port) = address_and_port(value_in(environment, "SHOAL_STORE"));
  options.epoch = member.epoch = static_cast<std::uint64_t>(number_in(environment, "SHOAL_EPOCH"));
  member.address = environment.contains("SHOAL_INTERFACE")
                       ? rendezvous::address_of(value_in(environment, "SHOAL_INTERFACE"))
                       : options.address;
  member.store = std::make_unique<rendezvous::TcpStore>(member.key, options);
  return member;
}

Member member_of(const Environment& environment, std::chrono::nanoseconds limit) {
  SHOAL_CHECK(environment.contains("SHOAL_STORE"), InvalidInput,
              "elastic: this process belongs to no job: nothing says where its store is (SHOAL_STORE)");
  return member_in(environment, {.limit = limit});
}

std::unique_ptr<Job> join(const Environment& environment, std::chrono::nanoseconds limit) {
  std::unique_ptr<Job> job(new Job);
  job->place_ = place_of(environment);
  const Place& place = job->place_;
  const auto has = [&](std::string_view name) { return environment.contains(name); };
  if (has("SHOAL_LIMIT")) job->limit_ = std::chrono::seconds(number_in(environment, "SHOAL_LIMIT"));
  limit = std::min(limit, job->limit_);
  const Clock::time_point deadline = rendezvous::deadline_after(limit);
  if (has("SHOAL_INTERFACE")) job->interface_ = value_in(environment, "SHOAL_INTERFACE");
  if (has("TORCHELASTIC_RESTART_COUNT"))
    job->attempt_ = static_cast<int>(number_in(environment, "TORCHELASTIC_RESTART_COUNT"));
  job->flight_ =
      has("SHOAL_FLIGHT_DESCRIPTOR")
          ? std::make_unique<Flight>(static_cast<int>(number_in(environment, "SHOAL_FLIGHT_DESCRIPTOR")))
          : std::make_unique<Flight>();

  std::jthread giver;  // ended when this returns
  rendezvous::TcpStoreOptions options = {.limit = limit};
  if (has("SHOAL_STORE")) {
    Member member = member_in(environment, options);
    job->key_ = member.key;
    job->epoch_ = member.epoch;
    job->store_ = std::move(member.store);
  } else if (place.size == 1) {
    job->store_ = std::make_unique<rendezvous::MemoryStore>();
  } else if (has("SHOAL_KEY_FILE")) {
    const Key key = rendezvous::read_key_file(value_in(environment, "SHOAL_KEY_FILE"));
    options.address = value_in(environment, "MASTER_ADDR");
    if (options.address == "localhost") options.address = "127.0.0.1";
    options.port = static_cast<std::uint16_t>(has("SHOAL_PORT") ? number_in(environment, "SHOAL_PORT")
                                                                : number_in(environment, "MASTER_PORT") + 1);
    if (place.rank == 0)
      job->server_ = std::make_unique<rendezvous::TcpServer>(
          key, rendezvous::TcpServerOptions{.address = options.address, .port = options.port});
    job->store_ = std::make_unique<rendezvous::TcpStore>(key, options);
  } else {
    SHOAL_CHECK(
        place.local_size == place.size, InvalidInput, "elastic: ", place.size, " ranks, of which ",
        place.local_size, " are on this host: ranks on several hosts that ", place.starter,
        " starts need SHOAL_KEY_FILE, a file with the job's key on each host (shoal run does without)");
    const std::string name = name_of_job(environment);
    Credentials credentials;
    if (place.rank == 0) {
      credentials.key = rendezvous::make_key();
      job->server_ = std::make_unique<rendezvous::TcpServer>(credentials.key);
      credentials.port = job->server_->port();
      giver = std::jthread([listener = listener_of_job(name), credentials, num = place.size - 1, deadline] {
        hand_over(credentials, *listener, num, deadline);
      });
    } else {
      credentials = handed_over(name, limit);
    }
    options.port = credentials.port;
    job->store_ = std::make_unique<rendezvous::TcpStore>(credentials.key, options);
  }
  Attendance all;
  try {
    all = meet(*job->store_,
               {.place = place, .identity = comm::host_identity(), .host = host_name(), .process = getpid()},
               deadline - Clock::now());
  } catch (const Error& error) {
    job->flight_->failed(error.kind(), error.what());
    throw;
  }
  job->first_ranks_ = comm::first_ranks_of_hosts(all.identities);
  job->hosts_ = std::move(all.hosts);
  return job;
}

}  // namespace shoal::elastic
