// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/streams.h"

#include <algorithm>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::comm {

void Streams::start(int row) {
  SHOAL_CHECK(state(row) == State::Idle, Internal, "streams: call ", row, " was started twice");
  state(row) = State::Started;
  under_way_.push_back(row);
  poll();
}

void Streams::begin(int row) {
  at(row).call->begin();
  state(row) = State::Begun;
}

bool Streams::is_done(int row) {
  if (state(row) == State::Begun && at(row).call->done()) state(row) = State::Done;
  return state(row) == State::Done || state(row) == State::Idle;
}

void Streams::poll() {
  std::vector<int> blocked, looked_at;  // streams
  const auto take = [](std::vector<int>& streams, int stream) {
    if (std::ranges::find(streams, stream) != streams.end()) return false;
    streams.push_back(stream);
    return true;
  };
  for (const int row : under_way_) {
    const int stream = at(row).stream;
    if (state(row) == State::Begun) {
      if (take(looked_at, stream)) is_done(row);  // those behind it move with it
    } else if (state(row) == State::Started && std::ranges::find(blocked, stream) == blocked.end()) {
      if (std::ranges::all_of(at(row).needs, [&](int other) { return is_done(other); }))
        begin(row);
      else
        blocked.push_back(stream);
    }
  }
}

void Streams::wait(int row) {
  SHOAL_CHECK(state(row) != State::Idle, Internal, "streams: call ", row, " was not started");
  for (const int before : under_way_) {
    if (state(before) == State::Started) {
      for (const int need : at(before).needs)
        if (!is_done(need)) {
          at(need).call->finish();
          state(need) = State::Done;
        }
      begin(before);
    }
    if (before == row) break;
  }
  at(row).call->finish();
  state(row) = State::Idle;
  std::erase(under_way_, row);
}

void Streams::drop() noexcept {
  for (const int row : std::exchange(under_way_, {})) {
    if (state(row) == State::Begun || state(row) == State::Done) at(row).call->drop();
    state(row) = State::Idle;
  }
}

}  // namespace shoal::comm
