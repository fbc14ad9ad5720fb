// SPDX-License-Identifier: Apache-2.0
// One coroutine a connection.
#include "shoal/ps/server.h"

#include <fcntl.h>

#include <asio.hpp>

#include <algorithm>
#include <list>
#include <thread>
#include <tuple>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/ps/answers.h"
#include "shoal/ps/wire.h"
#include "shoal/rendezvous/door.h"

namespace shoal::ps {

using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;

namespace {

class Loop {
 public:
  Loop(const rendezvous::Key& key, const ServerOptions& options, std::uint32_t loop)
      : answers_(
            loop, options.all_loops, options.epoch, [this] { woken_.cancel(); }, &files_),
        door_(key, wire::kMagic) {
    asio::error_code error;
    const asio::ip::address address = asio::ip::make_address(options.address, error);
    SHOAL_CHECK(!error && !address.is_unspecified(), InvalidInput, "ps: ", in_quotes(options.address),
                " is not the IP address of one interface");
    const tcp::endpoint endpoint(address, 0);
    acceptor_.open(endpoint.protocol());
    fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
    std::ignore = acceptor_.bind(endpoint, error);
    if (!error) std::ignore = acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    SHOAL_CHECK(!error, InvalidInput, "ps: cannot listen on ", options.address, ": ", error.message(),
                "; is that an address of this host?");
    endpoint_ = {.address = options.address, .port = acceptor_.local_endpoint().port()};
    asio::co_spawn(context_, accept(), asio::detached);
    thread_ = std::thread([this] { context_.run(); });
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop() {
    context_.stop();
    thread_.join();
  }

  const Endpoint& endpoint() const { return endpoint_; }
  std::int64_t num_refused() const { return door_.num_refused(); }
  std::int64_t num_applied() const { return answers_.num_applied(); }

 private:
  awaitable<void> accept() {
    for (;;) {
      asio::error_code error;
      tcp::socket socket = co_await acceptor_.async_accept(asio::redirect_error(use_awaitable, error));
      if (error) {  // most likely out of descriptors: some connection will end
        asio::steady_timer later(context_, std::chrono::milliseconds(20));
        co_await later.async_wait(asio::redirect_error(use_awaitable, error));
        continue;
      }
      asio::co_spawn(context_, serve(std::move(socket)), asio::detached);
    }
  }

  awaitable<void> serve(tcp::socket socket) {
    try {
      fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
      socket.set_option(tcp::no_delay(true));
      socket.set_option(asio::socket_base::keep_alive(true));
      const bool known = co_await door_.admits(socket);
      if (!known) co_return;
      std::vector<std::byte> begin(sizeof(wire::Head)), payload, reply;
      for (;;) {
        co_await asio::async_read(socket, asio::buffer(begin), use_awaitable);
        const wire::Head head = wire::head_of(begin);
        payload.resize(head.bytes);
        co_await asio::async_read(socket, asio::buffer(payload), use_awaitable);
        while (!answers_.answer(head, payload, reply)) co_await others();
        co_await asio::async_write(socket, asio::buffer(reply), use_awaitable);
      }
    } catch (const std::exception&) {  // the other end has gone, or does not speak frames
      asio::error_code ignored;
      std::ignore = socket.close(ignored);
    }
  }

  // Until one of those that wait for other workers has an answer.
  awaitable<void> others() {
    asio::error_code cancelled;
    co_await woken_.async_wait(asio::redirect_error(use_awaitable, cancelled));
  }

  Endpoint endpoint_;

  // Of the thread.
  DiskFileSystem files_;
  Answers answers_;
  rendezvous::Door door_;

  asio::io_context context_{1};  // its coroutines use what stands above
  tcp::acceptor acceptor_{context_};
  asio::steady_timer woken_{context_, asio::steady_timer::time_point::max()};
  std::thread thread_;
};

}  // namespace

class Server::Service {
 public:
  Service(const rendezvous::Key& key, const ServerOptions& options) {
    SHOAL_CHECK(options.loops > 0 && options.first_loop + options.loops <= options.all_loops, InvalidInput,
                "ps: a server has loops ", options.first_loop, " to ", options.first_loop + options.loops - 1,
                " of ", options.all_loops);
    for (std::uint32_t i = 0; i < options.loops; ++i)
      loops_.push_back(std::make_unique<Loop>(key, options, options.first_loop + i));
  }
  const std::vector<std::unique_ptr<Loop>>& loops() const { return loops_; }

 private:
  std::vector<std::unique_ptr<Loop>> loops_;
};

Server::Server(const rendezvous::Key& key, const ServerOptions& options)
    : service_(std::make_unique<Service>(key, options)) {}

Server::~Server() = default;

std::vector<Endpoint> Server::endpoints() const {
  std::vector<Endpoint> all;
  for (const auto& loop : service_->loops()) all.push_back(loop->endpoint());
  return all;
}

std::int64_t Server::num_refused() const {
  std::int64_t sum = 0;
  for (const auto& loop : service_->loops()) sum += loop->num_refused();
  return sum;
}

std::int64_t Server::num_applied() const {
  std::int64_t sum = 0;
  for (const auto& loop : service_->loops()) sum += loop->num_applied();
  return sum;
}

}  // namespace shoal::ps
