// SPDX-License-Identifier: Apache-2.0
// A Communicator on any of LibTorch's process groups. What differs between them is in the Engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shoal/comm/communicator.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/rendezvous/store.h"

namespace shoal::comm_c10d {

struct Engine {
  c10::intrusive_ptr<c10d::Backend> backend;  // null where size is 1
  c10::Device device = c10::kCPU;             // where buffers are
  bool messages_beside = true;                // whether send and receive may run beside other calls
  Calls calls = Calls::Compared;
  std::function<void()> interrupt;  // ends what is under way here, and cuts the connections to other ranks
  // Where there is one the next collective has this tag, and what has another tag never meets it: calls need
  // not be compared before data moves.
  std::function<void(std::uint32_t)> tag_next;
};

struct Group {
  std::string name;
  int rank = 0;
  int size = 1;
};

// A communicator of the same kind for some ranks of a group, each of which calls it.
using MakeGroup = std::function<std::unique_ptr<comm::Communicator>(const Group&)>;

// `store` is borrowed, and outlives the communicator.
std::unique_ptr<comm::Communicator> make_communicator(Group group, Engine engine, rendezvous::Store& store,
                                                      MakeGroup make_group);

}  // namespace shoal::comm_c10d
