// SPDX-License-Identifier: Apache-2.0
// Kernels of the messages of sharding/collective.h: one call of a communicator each.
#pragma once

#include <memory>
#include <vector>

#include "shoal/comm/communicator.h"
#include "shoal/comm/streams.h"
#include "shoal/observe/trace.h"
#include "shoal/runtime/groups.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// A kernel that is one call of a communicator, which may go on beside other kernels (comm/streams.h).
class Message : public Kernel, public comm::StreamCall {
 public:
  // Takes what it reads, and puts what it makes into its slot: nobody may look at it before finish(). `trace`
  // is where its time is noted, or null; borrowed until then.
  virtual void prepare(Slots& slots, observe::Trace* trace) = 0;
  void run(Slots& slots) final {
    prepare(slots, nullptr);
    begin();
    finish();
  }
};

// A kernel whose messages go on while others run: some communicators move nothing by themselves.
class UnderWay {
 public:
  virtual ~UnderWay() = default;
  virtual void go_on() = 0;   // never blocks, never throws: what is wrong is told by the next call
  virtual void arrive() = 0;  // until other ranks have it, as Work::wait
};

// Throws InvalidInput where `groups` is null: the program is one of several ranks. Adds the kernel to `sends`
// where it is one of those; borrowed.
std::unique_ptr<Message> make_collective(const program::Program& program, const program::Compute& compute,
                                         const Groups* groups, std::vector<UnderWay*>* sends = nullptr);

// Of the argument "combine".
comm::ReduceOp reduction_of(const program::Compute& compute);

}  // namespace shoal::runtime
