// SPDX-License-Identifier: Apache-2.0
// The flight recorder: a rank's last 1,000 calls, in memory that its launcher sees too. So the launcher knows
// what a rank was doing even when that was killed or stopped in the middle of it.
//
//   Head: how many calls, where in the model, the first error | Slot x 1000, a ring
//
// A call costs two writes to memory and two looks at the clock.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/call.h"

namespace shoal::elastic {

enum class CallState : std::uint32_t {
  UnderWay,
  Done,
  Failed,
  Waiting
};  // Waiting: and its rank does nothing else

struct FlightRecord {        // of one call
  std::uint64_t number = 0;  // as errors have it: of the group's collectives, or the two ranks' messages
  comm::Call call;           // what was asked for
  CallState state = CallState::UnderWay;  // how far it is
  std::int64_t begin_ns = 0, end_ns = 0;  // of the host's steady clock
  std::string group, module;              // "[0,2]", "h.3.mlp"; empty where not said
};

// "call 17, all_reduce(f32 x 1000, sum), in transformer.h.3.mlp"
std::string describe(const FlightRecord& record);

// What stands in a recorder.
struct FlightLog {
  std::uint64_t num_calls = 0;        // begun, ever
  std::string module;                 // where the rank was when it said so last
  std::optional<ErrorKind> kind;      // of the first call that failed; none: none has
  std::string error;                  // its text
  std::vector<FlightRecord> records;  // the last ones, the oldest first
};
// A line for each call.
std::string to_text(const FlightLog& log);

// A rank's recorder. Any thread.
class Flight {
 public:
  Flight();  // a new one; throws Infeasible where the system has no memory for it
  // The one behind a descriptor that was inherited; takes the descriptor over. Throws InvalidInput where it
  // is none.
  explicit Flight(int descriptor);
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
  ~Flight();
  int descriptor() const { return descriptor_; }  // closed on exec

  // From here on calls are made in this module. Any thread.
  void enter(std::string_view module);
  // Gives the call's place in the recorder. No module: the one that was entered.
  std::uint64_t begin(const comm::Call& call, std::uint64_t number, std::string_view group,
                      std::string_view module = "");
  void waits(std::uint64_t place);                 // for this call: the rank does nothing else
  void end(std::uint64_t place, CallState state);  // of the call at that place
  // ", in group [0,2], in h.3.mlp": the parts that there are; nothing for a call of long ago.
  std::string where(std::uint64_t place) const;
  void failed(ErrorKind kind, std::string_view error);  // the first one stays

  // Any process, whatever the writer does meanwhile.
  FlightLog read() const;
  std::uint64_t num_calls() const;

 private:
  struct Head;
  struct Slot;
  struct Shared;
  void map();

  int descriptor_ = -1;
  Shared* shared_ = nullptr;
  std::mutex mutex_;  // of the head's texts
};

// Names the module that calls are made in while this lives.
class InModule {
 public:
  // `flight` is borrowed.
  InModule(Flight& flight, std::string_view module) : flight_(flight) { flight_.enter(module); }
  InModule(const InModule&) = delete;
  InModule& operator=(const InModule&) = delete;
  ~InModule() { flight_.enter(""); }

 private:
  Flight& flight_;
};

}  // namespace shoal::elastic
