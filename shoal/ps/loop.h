// SPDX-License-Identifier: Apache-2.0
// A loop of a server: its thread, its port, and the parts of the tables that it has, one coroutine a connection.
//
//   client ── push ─►  primary  ── the same frame ─►  copy
//          ◄── done ─           ◄────── done ───────
//
// A primary does what is asked and passes on what changes its part, in that order, over one connection. Nothing
// that it has done is answered, rows included, before its copy has done it too: what somebody has seen survives
// either of them (chain replication, van Renesse and Schneider, OSDI 2004). The copy refuses the frames of who is
// no primary by its map, so that one that was thought dead answers nothing either.
#pragma once

#include <asio.hpp>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "shoal/base/file_system.h"
#include "shoal/ps/answers.h"
#include "shoal/ps/moves.h"
#include "shoal/ps/payloads_beside.h"
#include "shoal/ps/server.h"
#include "shoal/ps/wire.h"
#include "shoal/rendezvous/door.h"

namespace shoal::ps {

class Loop {
 public:
  Loop(const rendezvous::Key& key, const ServerOptions& options, std::uint32_t loop, const ColdTier& cold);
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  ~Loop();

  const Endpoint& endpoint() const { return endpoint_; }
  void see(const ShardMap& map);  // which there is now; any thread
  std::int64_t num_refused() const { return door_.num_refused(); }
  std::int64_t num_applied() const { return num_applied_; }

 private:
  using Bytes = std::vector<std::byte>;
  using Socket = asio::ip::tcp::socket;
  template <class T>
  using Awaitable = asio::awaitable<T>;

  struct Part {
    explicit Part(std::unique_ptr<Answers> all) : answers(std::move(all)) {}
    std::unique_ptr<Answers> answers;
    bool leads = false;         // this is its primary
    bool holds = false;         // and answers nothing, as its copy is to be that
    std::uint64_t history = 0;  // changes that were done here
    // Of who passes changes on: a primary to its copy, and who has all to whom it gives the rows.
    int next = ShardMap::kNone;           // its loop
    Endpoint to;                          // where that is
    bool gives = false;                   // that one is not in the map yet
    bool waits = false;                   // and yet nothing is answered before it has done that too
    bool saves = false;                   // a coroutine has saves go on
    bool has_link = false;                // a coroutine that passes them on
    std::uint64_t base = 0;               // history before the first frame to who is given
    std::uint64_t passed = 0, there = 0;  // frames, and those that the next one has done
    std::deque<std::shared_ptr<const Bytes>> waiting;  // those in between
    // Of who follows.
    bool is_given = false;     // the rows, and is not in the map yet
    std::uint64_t links = 0;   // that there were to it; only the last one is heard
    Socket* heard = nullptr;   // of that one
    Endpoint heard_from = {};  // who it is
  };
  using PartPtr = std::shared_ptr<Part>;
  struct Link;
  struct Hearing;

  void listen(const std::string& address);
  Awaitable<void> serve(Socket socket);
  Awaitable<void> answer(const wire::Head& head, const Bytes& payload, Bytes& reply);
  Awaitable<void> follow(Socket& socket, const wire::Head& head, const Bytes& payload);
  PartPtr asked(const wire::Head& head, bool of_primary);
  Bytes shared(const wire::Head& head, const Bytes& payload, std::optional<PayloadsOfClient>& beside);
  void older(const wire::Head& head, Bytes& reply) const;
  void count_applied();
  void begin_saves(const PartPtr& part);
  Awaitable<void> save_on(PartPtr part);

  // Of servers with a map.
  void adopt(const ShardMap& map);
  void follow_map(std::uint32_t number, int here);
  PartPtr make_part(std::uint32_t part);
  void record(Part& part, const wire::Head& head, const Bytes& payload);
  static void unlink(Part& part);
  void leave(Part& part);
  Awaitable<void> tend();
  bool has_to_tend() const;
  std::optional<Move> next_task(bool fair) const;
  Awaitable<void> carry_out(Move move);
  Awaitable<void> give_rows(Move move, PartPtr part);
  Awaitable<void> turn(Move move, PartPtr part);
  void put(const Move& move);
  static bool gives_to(const Part& part, int loop) { return part.gives && part.next == loop; }
  void pass(Part& part, Bytes frame);
  static bool is_awaited(const Part& part, std::uint64_t frame);
  PartPtr begin_copy(const wire::Head& head);
  Awaitable<void> keep_link(std::uint32_t number, PartPtr part);
  Awaitable<bool> pass_on(std::uint32_t number, PartPtr part);
  Awaitable<void> hear(std::shared_ptr<Link> link, PartPtr part);
  Awaitable<bool> shake_hands(Socket& socket) const;
  static Awaitable<void> until_changed(asio::steady_timer& timer);

  const rendezvous::Key key_;
  const ServerOptions options_;
  const ColdTier& cold_;
  Endpoint endpoint_;

  // Of the thread.
  DiskFileSystem files_;
  comm::shm::Mappings mappings_;  // of clients
  rendezvous::Door door_;
  ShardMap map_;
  bool tends_ = false;  // a coroutine does
  std::atomic<std::int64_t> num_applied_ = 0;

  asio::io_context context_{1};  // its coroutines use what stands above
  asio::ip::tcp::acceptor acceptor_{context_};
  asio::steady_timer woken_{context_, asio::steady_timer::time_point::max()};  // answers that wait for others
  asio::steady_timer recorded_{context_,
                               asio::steady_timer::time_point::max()};          // links, for what to pass on
  asio::steady_timer copied_{context_, asio::steady_timer::time_point::max()};  // answers, for the copy
  std::map<std::uint32_t, PartPtr> parts_;
  std::thread thread_;
};

}  // namespace shoal::ps
