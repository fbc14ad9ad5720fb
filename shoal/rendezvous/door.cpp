// SPDX-License-Identifier: Apache-2.0
#include "shoal/rendezvous/door.h"

#include <asio.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "shoal/rendezvous/handshake.h"

namespace shoal::rendezvous {

using asio::use_awaitable;
using asio::ip::tcp;

static constexpr std::chrono::seconds kHandshake{5};

// In the list, as long as it lives and is not pushed out.
class Door::Waiting {
 public:
  Waiting(Door& door, tcp::socket& socket) : door_(door), socket_(&socket) {
    asio::error_code gone;
    const tcp::endpoint other = socket.remote_endpoint(gone);
    door_.strangers_.push_back({socket_, gone ? asio::ip::address() : other.address()});
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    std::erase_if(door_.strangers_, [&](const Stranger& each) { return each.socket == socket_; });
  }

 private:
  Door& door_;
  tcp::socket* socket_;
};

void Door::close_one_of_the_most() {
  std::map<asio::ip::address, std::size_t> count;
  for (const Stranger& each : strangers_) ++count[each.from];
  const auto most = std::ranges::max_element(count, {}, [](const auto& row) { return row.second; })->first;
  const auto oldest = std::ranges::find(strangers_, most, &Stranger::from);
  asio::error_code ignored;
  std::ignore = oldest->socket->close(ignored);
  strangers_.erase(oldest);
}

asio::awaitable<bool> Door::admits(tcp::socket& socket) {
  const Waiting waiting(*this, socket);
  if (strangers_.size() > kMostStrangers) close_one_of_the_most();
  asio::steady_timer limit(socket.get_executor(), kHandshake);
  limit.async_wait([this, &socket](asio::error_code cancelled) {  // it may be due when the socket has gone
    asio::error_code ignored;
    if (!cancelled && std::ranges::find(strangers_, &socket, &Stranger::socket) != strangers_.end())
      std::ignore = socket.close(ignored);
  });
  bool is_told = false;  // that it is refused
  try {
    const Greeter greeter(key_, magic_);
    const std::string hello = greeter.hello();
    co_await asio::async_write(socket, asio::buffer(hello), use_awaitable);
    Answer answer;
    co_await asio::async_read(socket, asio::buffer(answer), use_awaitable);
    const std::optional<Bytes32> proof = greeter.reply(answer);
    is_told = !proof;
    if (is_told) ++num_refused_;
    const Bytes32 reply = proof.value_or(kRefusal);  // named: the write looks at it while this waits
    co_await asio::async_write(socket, asio::buffer(reply), use_awaitable);
    co_return proof.has_value();
  } catch (const std::exception&) {  // the other end has gone, or was closed above
    if (!is_told) ++num_refused_;
    co_return false;
  }
}

asio::awaitable<void> accept_each(tcp::acceptor& acceptor, std::function<void(tcp::socket)> serves) {
  for (;;) {
    asio::error_code error;
    tcp::socket socket = co_await acceptor.async_accept(asio::redirect_error(use_awaitable, error));
    if (error) {  // most likely out of descriptors: some connection will end
      asio::steady_timer later(acceptor.get_executor(), std::chrono::milliseconds(20));
      co_await later.async_wait(asio::redirect_error(use_awaitable, error));
      continue;
    }
    serves(std::move(socket));
  }
}

}  // namespace shoal::rendezvous
