// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/rendezvous/handshake.h"
#include "shoal/rendezvous/tcp_server.h"
#include "shoal/rendezvous/tcp_store.h"
#include "shoal/rendezvous/wire.h"

using namespace shoal;
using namespace shoal::rendezvous;
using namespace std::chrono_literals;

static TcpStoreOptions at(const TcpServer& server, std::uint64_t epoch = 1) {
  return {.address = server.address(), .port = server.port(), .epoch = epoch, .limit = 5s};
}

static ErrorKind kind_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.kind();
  }
  FAIL("no error");
  return ErrorKind::Internal;
}

// A plain connection, as a stranger has it.
static int stranger(const TcpServer& server, const char* from = "127.0.0.1") {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in here = {.sin_family = AF_INET};
  inet_pton(AF_INET, from, &here.sin_addr);
  REQUIRE(bind(socket, reinterpret_cast<const sockaddr*>(&here), sizeof here) == 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(server.port())};
  inet_pton(AF_INET, server.address().c_str(), &address.sin_addr);
  REQUIRE(connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return socket;
}

static bool ends(
    int socket) {  // whether the other side closes, having said nothing but its greeting and a refusal
  char byte = 0;
  std::size_t read = 0;
  while (recv(socket, &byte, 1, 0) == 1) ++read;
  close(socket);
  return read <= kHelloBytes + 32;  // and a refusal
}

TEST_CASE("an epoch that is over is refused, and its keys and waits are gone; those of epoch 0 stay") {
  const Key key = make_key();
  TcpServer server(key);
  TcpStore job(key, at(server, 0)), old(key, at(server));
  job.set("host", "a");
  old.set("address", "here");
  std::string why;
  std::thread waiting([&] {
    try {
      old.get("never", 60s);
    } catch (const Error& error) {
      why = error.what();
    }
  });
  while (old.find("address") != "here") std::this_thread::yield();
  server.begin_epoch(2);
  waiting.join();
  CHECK(why == "rendezvous: epoch 1 of this job is over; it is at 2");
  CHECK_THROWS_WITH_AS(old.set("a", "1"), "rendezvous: epoch 1 of this job is over; it is at 2", Error);
  TcpStore now(key, at(server, 2));
  CHECK_FALSE(now.find("address"));
  CHECK(job.find("host") == "a");
}

TEST_CASE("a wrong key is refused on both sides") {
  const Key key = make_key();
  TcpServer server(key);
  CHECK(kind_of([&] { TcpStore(make_key(), at(server)); }) == ErrorKind::InvalidInput);
  CHECK(server.num_refused() == 1);
  TcpStore store(key, at(server));
  store.set("a", "1");
  CHECK(store.find("a") == "1");
}

TEST_CASE("strangers get nothing, whatever they send, and the job goes on") {
  const Key key = make_key();
  TcpServer server(key);
  TcpStore store(key, at(server));
  std::mt19937 random(1);
  std::string garbage(1 << 20, '\0');
  for (char& byte : garbage) byte = static_cast<char>(random());
  std::thread wrong([&] {
    for (int i = 0; i < 300; ++i) {
      try {
        const TcpStore stranger_store(make_key(), at(server));
        FAIL_CHECK("accepted");
      } catch (const Error&) {
      }
    }
  });
  for (int i = 0; i < 100; ++i) CHECK(store.add("n", 1) == i + 1);
  const int one = stranger(server);
  send(one, garbage.data(), garbage.size(), MSG_NOSIGNAL);
  CHECK(ends(one));
  std::string replayed(wire::kMagic);  // all there is of a right answer but the proof
  replayed.append(64, '\0');
  const int two = stranger(server);
  send(two, replayed.data(), replayed.size(), MSG_NOSIGNAL);
  CHECK(ends(two));
  wrong.join();
  CHECK(server.num_refused() == 302);

  std::vector<int> silent;  // more than are kept: the oldest go
  for (int i = 0; i < 200; ++i) silent.push_back(stranger(server));
  CHECK(ends(silent[0]));
  CHECK(TcpStore(key, at(server)).find("n") == "100");
  for (std::size_t i = 1; i < silent.size(); ++i) close(silent[i]);
}

TEST_CASE("a flood from one address pushes out its own, and no rank of another, nor one that is in") {
  const Key key = make_key();
  TcpServer server(key);
  TcpStore in(key, at(server));
  const int joining = stranger(server, "127.0.0.2");  // that has not proved the key yet
  std::vector<int> flood;
  for (int i = 0; i < 400; ++i) flood.push_back(stranger(server));
  CHECK(ends(flood[0]));
  CHECK(in.add("n", 1) == 1);

  std::string hello(kHelloBytes, '\0');
  REQUIRE(recv(joining, hello.data(), hello.size(), MSG_WAITALL) == kHelloBytes);
  const Answerer answerer(key, hello);
  REQUIRE(send(joining, answerer.answer().data(), kAnswerBytes, MSG_NOSIGNAL) == kAnswerBytes);
  std::string proof(32, '\0');
  REQUIRE(recv(joining, proof.data(), proof.size(), MSG_WAITALL) == 32);
  CHECK(answerer.is_right(proof));
  close(joining);
  for (std::size_t i = 1; i < flood.size(); ++i) close(flood[i]);
}

TEST_CASE("who is pushed out before it could prove the key tries again") {
  const Key key = make_key();
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in here = {.sin_family = AF_INET};
  inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
  socklen_t size = sizeof here;
  REQUIRE(bind(listening, reinterpret_cast<const sockaddr*>(&here), size) == 0);
  REQUIRE(listen(listening, 4) == 0);
  REQUIRE(getsockname(listening, reinterpret_cast<sockaddr*>(&here), &size) == 0);
  std::thread crowded([&] {
    for (const bool pushes_out : {true, true, false}) {
      const int socket = accept(listening, nullptr, nullptr);
      const Greeter greeter(key, wire::kMagic);
      send(socket, greeter.hello().data(), kHelloBytes, MSG_NOSIGNAL);
      Answer answer;
      if (!pushes_out && recv(socket, answer.data(), answer.size(), MSG_WAITALL) == kAnswerBytes)
        send(socket, greeter.reply(answer).value_or(kRefusal).data(), 32, MSG_NOSIGNAL);
      close(socket);
    }
  });
  CHECK_NOTHROW(
      TcpStore(key, {.address = "127.0.0.1", .port = ntohs(here.sin_port), .epoch = 1, .limit = 5s}));
  shutdown(listening, SHUT_RDWR);
  crowded.join();
  close(listening);
}

TEST_CASE("requests and replies are read back as they were written, and nothing else is") {
  const wire::Request request = {.op = wire::Op::CompareAndSet,
                                 .epoch = 7,
                                 .number = -3,
                                 .key = "a",
                                 .value = std::string("x\0y", 3),
                                 .expected = "z"};
  const std::string bytes = to_bytes(request);
  CHECK(wire::request_of(bytes) == request);
  const wire::Reply reply = {
      .status = wire::Status::Failed, .kind = ErrorKind::Timeout, .number = 5, .text = "t"};
  CHECK(wire::reply_of(to_bytes(reply)) == reply);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_THROWS_AS(wire::request_of(std::string_view(bytes).substr(0, size)), Error);
  CHECK_THROWS_AS(wire::request_of(bytes + "x"), Error);
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    std::string changed = bytes;
    changed[random() % changed.size()] = static_cast<char>(random());
    try {
      const wire::Request other = wire::request_of(changed);
      CHECK(to_bytes(other) == changed);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Corrupt);
    }
  }
}

TEST_CASE("an address that is taken, strange or everybody's says so") {
  const Key key = make_key();
  const TcpServer server(key);
  CHECK(
      error_of([&] { TcpServer(key, {.port = server.port()}); }) ==
      concat("rendezvous: cannot listen on 127.0.0.1:", server.port(),
             ": Address already in use; another job has this port: choose another one, or 0 for a free one"));
  CHECK_THROWS_WITH_AS(TcpServer(key, {.address = "0.0.0.0"}),
                       "rendezvous: 0.0.0.0 means every interface; name the one that the job's hosts share",
                       Error);
  CHECK_THROWS_WITH_AS(TcpServer(key, {.address = "203.0.113.7"}),
                       "rendezvous: cannot listen on 203.0.113.7:0: Cannot assign requested address; is that "
                       "an address of this host?",
                       Error);
  CHECK(address_of("lo") == "127.0.0.1");
  try {
    address_of("none0");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what())
              .starts_with("rendezvous: there is no network interface \"none0\" with an IPv4 address; there "
                           "are lo"));
  }
}

TEST_CASE("a server that is not there, or goes, ends in an error that names it") {
  const Key key = make_key();
  auto server = std::make_unique<TcpServer>(key);
  const TcpStoreOptions options = {.port = server->port(), .limit = 50ms};
  TcpStore store(key, options);
  std::thread waiting([&] { CHECK(kind_of([&] { store.get("never", 60s); }) == ErrorKind::PeerLost); });
  store.set("a", "1");
  server.reset();
  waiting.join();
  CHECK(kind_of([&] { store.find("a"); }) == ErrorKind::PeerLost);
  CHECK(error_of([&] { TcpStore(key, options); }) ==
        concat("rendezvous: 127.0.0.1:", options.port,
               " was not there within 0.05 s (Connection refused); is the "
               "job's first host up, and is that its address?"));
}

TEST_CASE("a closed store ends the waits of its threads") {
  const Key key = make_key();
  const TcpServer server(key);
  TcpStore store(key, at(server));
  std::thread waiting([&] { CHECK(kind_of([&] { store.get("never", 60s); }) == ErrorKind::PeerLost); });
  store.add("n", 1);
  store.close();
  waiting.join();
}

TEST_CASE("a key goes through a descriptor or a file that is this user's alone") {
  const Key key = make_key();
  CHECK_FALSE(key == make_key());
  const int descriptor = descriptor_of(key);
  CHECK(inherited_key(descriptor) == key);
  CHECK(inherited_key(descriptor) == key);
  close(descriptor);
  CHECK_THROWS_AS(inherited_key(descriptor), Error);

  const auto path = std::filesystem::temp_directory_path() / concat("shoal-key-test-", getpid());
  write_key_file(path, key);
  CHECK(read_key_file(path) == key);
  CHECK_THROWS_AS(write_key_file(path, key), Error);
  chmod(path.c_str(), 0640);
  CHECK(error_of([&] { read_key_file(path); }) == concat("rendezvous: others can read the key file ",
                                                         path.string(),
                                                         "; it has to be this user's, with mode 0600"));
  std::filesystem::remove(path);
  CHECK_THROWS_AS(read_key_file(path), Error);
}
