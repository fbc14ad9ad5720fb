// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm_c10d/gloo.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <csignal>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/comm_c10d/communicator.h"
#include "shoal/comm_c10d/store.h"

namespace shoal::comm_c10d {

namespace {

// The tag of a collective is c10d's own count of them: here it is what the call says.
class TaggedGloo final : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  // By the thread that makes the call.
  void tag_next(std::uint32_t tag) { collectiveCounter_ = tag; }
};

}  // namespace

// Gloo ends calls in one way only: a wait for a message that runs out of time closes the connections to all
// ranks, and everything that waits for one throws. So this waits, for a message that nobody sends.
static void interrupt(c10d::ProcessGroupGloo& gloo) {
  constexpr int kNeverSent = 1 << 30;
  for (int peer = 0; peer < gloo.getSize(); ++peer) {
    if (peer == gloo.getRank()) continue;
    try {
      std::vector<at::Tensor> nothing = {at::empty({1}, at::kByte)};
      gloo.recv(nothing, peer, kNeverSent)->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {  // as it should; or this connection is closed already
    }
  }
}

static c10::intrusive_ptr<TaggedGloo> connect(rendezvous::Store& store, const GlooOptions& options) {
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(options.limit);
  auto with = c10d::ProcessGroupGloo::Options::create(limit);
  with->threads = 2;  // calls of a communicator run one after the other, pieces of one do not
  try {
    with->devices = {c10d::ProcessGroupGloo::createDeviceForInterface(options.interface)};
  } catch (const std::exception& error) {
    fail(ErrorKind::InvalidInput, "gloo: cannot listen on the interface ", options.interface, ": ",
         error.what());
  }
  auto keys = c10::make_intrusive<PrefixedStore>(store, options.name + "/gloo/", limit);
  auto gloo = c10::make_intrusive<TaggedGloo>(keys, options.rank, options.size, with);
  c10d::BarrierOptions within;
  within.timeout = limit;
  gloo->barrier(within)->wait();  // nobody looks for addresses any more
  keys->remove_own_keys();
  return gloo;
}

// Gloo writes to the sockets of ranks that may have gone: an error then, not the end of this process.
static void survive_broken_pipes() {
  struct sigaction now = {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

std::unique_ptr<comm::Communicator> make_gloo(rendezvous::Store& store, const GlooOptions& options) {
  survive_broken_pipes();
  SHOAL_CHECK(options.size >= 1 && 0 <= options.rank && options.rank < options.size, InvalidInput,
              "gloo: there is no rank ", options.rank, " in a group of ", options.size);
  Engine engine{.calls = options.calls};
  if (options.size > 1) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      auto gloo = connect(store, options);
      engine.interrupt = [gloo] { interrupt(*gloo); };
      engine.tag_next = [gloo](std::uint32_t tag) { gloo->tag_next(tag); };
      engine.backend = gloo;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // of the store's own errors c10d passes on only the text
      const bool is_late = std::chrono::steady_clock::now() - begin >= options.limit;
      fail(is_late ? ErrorKind::Timeout : ErrorKind::PeerLost, "gloo: group ", options.name, ": rank ",
           options.rank, " could not connect to all ranks: ", error.what());
    }
  }
  const Group group{.name = options.name, .rank = options.rank, .size = options.size};
  return make_communicator(group, std::move(engine), store, [&store, options](const Group& part) {
    GlooOptions again = options;
    again.name = part.name;
    again.rank = part.rank;
    again.size = part.size;
    return make_gloo(store, again);
  });
}

}  // namespace shoal::comm_c10d
