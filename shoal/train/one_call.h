// SPDX-License-Identifier: Apache-2.0
// One call of a trainer at a time, and its name for whoever gets in its way.
#pragma once

#include <c10/core/InferenceMode.h>

#include <mutex>
#include <string>
#include <thread>

#include "shoal/base/error.h"

namespace shoal::train {

// Any thread.
class OneCall {
 public:
  // Runs it outside of inference mode, whose tensors no later step could use. Throws InvalidInput where another
  // thread is inside, naming both calls; where ranks turn out to make different ones, their error names this one.
  template <class Act>
  decltype(auto) run(const char* name, const Act& act) {
    const Inside inside(*this, name);
    const c10::InferenceMode outside(false);
    try {
      return act();
    } catch (const Error& error) {
      if (!is_of_other_calls(error)) throw;
      if (is_of_messages(error))
        fail(error.kind(), "trainer: in ", name, " two ranks are at different messages (", error.what(),
             "): one has left one out. Remedy: the same program, plan and version of Shoal on all ranks; ",
             "where they are the same it is a fault of that rank: go on from the checkpoint");
      fail(error.kind(), "trainer: this rank is in ", name, ", another one calls something else (",
           error.what(), "). Remedy: all ranks call the same functions of their trainers, in the same order");
    }
  }

 private:
  // The calls of one thread may stand in each other: step_over() asks for its micro-batches.
  class Inside {
   public:
    Inside(OneCall& calls, const char* name) : calls_(calls) {
      const std::lock_guard lock(calls.mutex_);
      SHOAL_CHECK(
          calls.depth_ == 0 || calls.thread_ == std::this_thread::get_id(), InvalidInput, "trainer: ", name,
          " is called while another thread is in ", calls.name_,
          " of the same trainer. Remedy: one thread at a time; a mutex around both, or a trainer each");
      if (calls.depth_++ > 0) return;
      calls.thread_ = std::this_thread::get_id();
      calls.name_ = name;
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() {
      const std::lock_guard lock(calls_.mutex_);
      --calls_.depth_;
    }

   private:
    OneCall& calls_;
  };

  static bool is_of_other_calls(const Error& error) {
    return error.kind() == ErrorKind::InvalidInput && std::string(error.what()).starts_with("comm: call ");
  }

  static bool is_of_messages(const Error& error) {
    const std::string text = error.what();
    return text.find(" send(") != std::string::npos || text.find(" receive(") != std::string::npos;
  }

  std::mutex mutex_;  // guards what follows
  int depth_ = 0;
  std::thread::id thread_;
  const char* name_ = "";
};

}  // namespace shoal::train
