// SPDX-License-Identifier: Apache-2.0
// One thread, one coroutine a connection. Strangers take neither time nor descriptors from the job (door.h).
#include "shoal/rendezvous/tcp_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <asio.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <tuple>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/rendezvous/deadline.h"
#include "shoal/rendezvous/door.h"
#include "shoal/rendezvous/table.h"
#include "shoal/rendezvous/wire.h"

namespace shoal::rendezvous {

using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;

std::string address_of(const std::string& interface) {
  ifaddrs* all = nullptr;
  SHOAL_CHECK(getifaddrs(&all) == 0, Infeasible,
              "rendezvous: cannot list network interfaces: ", std::strerror(errno));
  std::string address, names;
  for (const ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
    names += concat(names.empty() ? "" : ", ", one->ifa_name);
    if (one->ifa_name != interface || !address.empty()) continue;
    std::array<char, INET_ADDRSTRLEN> text = {};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text.data(),
              text.size());
    address = text.data();
  }
  freeifaddrs(all);
  SHOAL_CHECK(!address.empty(), InvalidInput, "rendezvous: there is no network interface ",
              in_quotes(interface), " with an IPv4 address; there are ", names.empty() ? "none" : names);
  return address;
}

// A connection whose other end has gone without a word is noticed within some 3 s.
static void watch_other_end(tcp::socket& socket) {
  const int descriptor = socket.native_handle();
  const auto set = [&](int level, int name, int value) {
    setsockopt(descriptor, level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 4000);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

class TcpServer::Service {
 public:
  Service(const Key& key, const TcpServerOptions& options)
      : address_(options.address), door_(key, wire::kMagic) {
    asio::error_code error;
    const asio::ip::address address = asio::ip::make_address(options.address, error);
    SHOAL_CHECK(!error, InvalidInput, "rendezvous: ", in_quotes(options.address), " is not an IP address");
    SHOAL_CHECK(!address.is_unspecified(), InvalidInput, "rendezvous: ", options.address,
                " means every interface; name the one that the job's hosts share");
    const tcp::endpoint endpoint(address, options.port);
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
    std::ignore = acceptor_.bind(endpoint, error);
    if (!error) std::ignore = acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    SHOAL_CHECK(!error, InvalidInput, "rendezvous: cannot listen on ", options.address, ":", options.port,
                ": ", error.message(),
                error == asio::error::address_in_use
                    ? "; another job has this port: choose another one, or 0 for a free one"
                    : "; is that an address of this host?");
    port_ = acceptor_.local_endpoint().port();
    const auto serves = [this](tcp::socket socket) {
      asio::co_spawn(context_, serve(std::move(socket)), asio::detached);
    };
    asio::co_spawn(context_, accept_each(acceptor_, serves), asio::detached);
    thread_ = std::thread([this] { context_.run(); });
  }

  ~Service() {
    context_.stop();
    thread_.join();
  }

  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }
  std::int64_t num_refused() const { return door_.num_refused(); }

  void begin_epoch(std::uint64_t epoch) {
    asio::post(context_, asio::use_future([this, epoch] {
                 epoch_ = epoch;
                 std::erase_if(tables_,
                               [&](const auto& row) { return row.first != 0 && row.first != epoch; });
                 for (const auto& [key, timer] : waiting_) timer->cancel();
               }))
        .get();
  }

 private:
  using WaitKey = std::pair<std::uint64_t, std::string>;  // epoch, key

  awaitable<void> serve(tcp::socket socket) {
    try {
      fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
      watch_other_end(socket);
      const bool known = co_await door_.admits(socket);
      if (!known) co_return;
      std::string bytes;
      for (;;) {
        bytes.resize(4);
        co_await asio::async_read(socket, asio::buffer(bytes), use_awaitable);
        const std::uint32_t length = wire::length_of(bytes);
        if (length > wire::kMostBytes) co_return;
        bytes.resize(length);
        co_await asio::async_read(socket, asio::buffer(bytes), use_awaitable);
        const wire::Request request = wire::request_of(bytes);
        const wire::Reply reply = co_await answer(request);
        bytes = wire::with_length(wire::to_bytes(reply));
        co_await asio::async_write(socket, asio::buffer(bytes), use_awaitable);
      }
    } catch (const std::exception&) {  // the other end has gone, or is no client
      asio::error_code ignored;
      std::ignore = socket.close(ignored);
    }
  }

  awaitable<wire::Reply> answer(const wire::Request& request) {
    wire::Reply reply;
    if (request.op == wire::Op::Get) {
      reply = co_await wait_for(request);
    } else {
      reply = answer_at_once(request);
    }
    co_return reply;
  }

  std::optional<wire::Reply> refusal(std::uint64_t epoch) const {
    if (epoch == 0 || epoch == epoch_) return std::nullopt;
    return wire::Reply{
        .status = wire::Status::Failed,
        .kind = ErrorKind::PeerLost,
        .text = concat("rendezvous: epoch ", epoch, " of this job is over; it is at ", epoch_)};
  }

  // What a get is answered at once, if it can be.
  std::optional<wire::Reply> found(const wire::Request& request, Clock::time_point deadline) {
    if (auto refused = refusal(request.epoch)) return refused;
    if (std::optional<std::string> value = tables_[request.epoch].find(request.key))
      return wire::Reply{.text = *std::move(value)};
    if (Clock::now() >= deadline) return wire::Reply{.status = wire::Status::TimedOut};
    return std::nullopt;
  }

  awaitable<wire::Reply> wait_for(const wire::Request& request) {
    const Clock::time_point deadline = deadline_after(std::chrono::nanoseconds(request.number));
    std::optional<wire::Reply> reply = found(request, deadline);
    while (!reply) {
      asio::steady_timer timer(context_, deadline);
      const Waiting waiting(*this, WaitKey(request.epoch, request.key), timer);
      asio::error_code woken;
      co_await timer.async_wait(asio::redirect_error(use_awaitable, woken));
      reply = found(request, deadline);
    }
    co_return *reply;
  }

  wire::Reply answer_at_once(const wire::Request& request) {
    if (const auto refused = refusal(request.epoch)) return *refused;
    Table& table = tables_[request.epoch];
    wire::Reply reply;
    try {
      switch (request.op) {
        case wire::Op::Set: table.set(request.key, request.value); break;
        case wire::Op::Find: {
          const std::optional<std::string> value = table.find(request.key);
          if (!value) reply.status = wire::Status::Absent;
          reply.text = value.value_or("");
          return reply;
        }
        case wire::Op::Add: reply.number = table.add(request.key, request.number); break;
        case wire::Op::CompareAndSet:
          reply.text = table.compare_and_set(request.key, request.expected, request.value);
          break;
        case wire::Op::Remove: reply.number = table.remove(request.key) ? 1 : 0; return reply;
        case wire::Op::NumKeys: reply.number = table.num_keys(); return reply;
        case wire::Op::Get: break;
      }
    } catch (const Error& error) {
      return {.status = wire::Status::Failed, .kind = error.kind(), .text = error.what()};
    }
    const auto [first, last] = waiting_.equal_range({request.epoch, request.key});
    for (auto waiting = first; waiting != last; ++waiting) waiting->second->cancel();
    return reply;
  }

  class Waiting {
   public:
    Waiting(Service& service, WaitKey key, asio::steady_timer& timer)
        : service_(service), place_(service.waiting_.emplace(std::move(key), &timer)) {}
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { service_.waiting_.erase(place_); }

   private:
    Service& service_;
    std::multimap<WaitKey, asio::steady_timer*>::iterator place_;
  };

  const std::string address_;
  std::uint16_t port_ = 0;

  // Of the thread.
  std::uint64_t epoch_ = 1;
  std::map<std::uint64_t, Table> tables_;
  std::multimap<WaitKey, asio::steady_timer*> waiting_;
  Door door_;

  asio::io_context context_{1};  // its coroutines use what stands above
  tcp::acceptor acceptor_{context_};
  std::thread thread_;
};

TcpServer::TcpServer(const Key& key, const TcpServerOptions& options)
    : service_(std::make_unique<Service>(key, options)) {}

TcpServer::~TcpServer() = default;

const std::string& TcpServer::address() const { return service_->address(); }
std::uint16_t TcpServer::port() const { return service_->port(); }
void TcpServer::begin_epoch(std::uint64_t epoch) { service_->begin_epoch(epoch); }
std::int64_t TcpServer::num_refused() const { return service_->num_refused(); }

}  // namespace shoal::rendezvous
