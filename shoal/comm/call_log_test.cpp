// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/call_log.h"

#include <doctest/doctest.h>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::comm;

static Call sum_of(std::int64_t count) { return {.op = Op::AllReduce, .count = count}; }

TEST_CASE("calls are numbered by lane, and the last 32 of each are kept") {
  CallLog log(3);
  for (std::int64_t i = 0; i < 100; ++i) CHECK(log.add(sum_of(i)) == static_cast<std::uint64_t>(i));
  CHECK(log.add({.op = Op::Send, .count = 5, .peer = 2}) == 0);
  CHECK(log.add({.op = Op::Receive, .count = 6, .peer = 2}) == 0);
  CHECK(log.add({.op = Op::Send, .count = 7, .peer = 2}) == 1);
  CHECK(log.num(0) == 100);
  CHECK(log.find(0, 67) == nullptr);
  CHECK(*log.find(0, 68) == sum_of(68));
  CHECK(*log.find(0, 99) == sum_of(99));
  CHECK(log.find(0, 100) == nullptr);
  CHECK(log.find(CallLog::lane_of({.op = Op::Send, .peer = 2}), 1)->count == 7);
}

TEST_CASE("a log goes through text, and what is no log is refused") {
  for (const std::int64_t num : {0, 3, 32, 77}) {
    CallLog log(2);
    for (std::int64_t i = 0; i < num; ++i) log.add({.op = Op::Reduce, .count = i, .peer = 1});
    const Call sent = {
        .op = Op::Send, .dtype = DType::Int64, .count = 9, .peer = 1, .tag = {.microbatch = 7, .message = 2}};
    if (num > 0) log.add(sent);
    const CallLog read = CallLog::from_text(log.to_text(), 2);
    CHECK(read.to_text() == log.to_text());
    if (num > 0) CHECK(*read.find(CallLog::lane_of(sent), 0) == sent);
    CHECK(read.num(0) == static_cast<std::uint64_t>(num));
  }
  CHECK(error_of([] { CallLog::from_text("9 0 2 0 1 0 0 0 0\n", 2); }) ==
        "comm: a log of calls between 2 ranks has the line \"9 0 2 0 1 0 0 0 0\"");
  for (const char* text : {"0 5 2 0 1 0 0 0 0\n", "0 0 2 0 x\n", "no\n"})
    CHECK(error_of([&] { CallLog::from_text(text, 2); }).starts_with("comm: a log of calls"));
}

TEST_CASE("two logs differ in the first call of one number that is not the same") {
  CallLog one(3), other(3);
  for (int i = 0; i < 40; ++i) {
    one.add(sum_of(i));
    other.add(sum_of(i));
  }
  CHECK(difference(0, one, 2, other).empty());
  other.add({.op = Op::Barrier});  // one has not come so far
  CHECK(difference(0, one, 2, other).empty());
  one.add(sum_of(0));
  one.add(sum_of(1));
  CHECK(difference(0, one, 2, other) == "comm: call 40: rank 0 all_reduce(f32 x 0, sum), rank 2 barrier()");
}

TEST_CASE("of a message type, size and tag have to be the same on its two ranks") {
  CallLog one(3), other(3), third(3);
  one.add({.op = Op::Send, .count = 3, .peer = 2});
  other.add({.op = Op::Receive, .count = 3, .peer = 0});
  third.add({.op = Op::Receive, .count = 8, .peer = 0});
  CHECK(difference(0, one, 2, other).empty());
  CHECK(difference(0, one, 1, third).empty());  // that was for rank 2
  other.add({.op = Op::Send, .count = 4, .peer = 0});
  one.add({.op = Op::Receive, .dtype = DType::Float64, .count = 4, .peer = 2});
  CHECK(difference(0, one, 2, other) ==
        "comm: call 0: rank 0 receive(f64 x 4, from 2), rank 2 send(f32 x 4, to 0)");
  one.add({.op = Op::Send, .count = 3, .peer = 2, .tag = {.microbatch = 3, .message = 1}});
  other = CallLog(3);
  other.add({.op = Op::Receive, .count = 3, .peer = 0});
  other.add({.op = Op::Receive, .count = 3, .peer = 0, .tag = {.microbatch = 2, .message = 1}});
  CHECK(difference(0, one, 2, other) ==
        "comm: call 1: rank 0 send(f32 x 3, to 2, micro-batch 3, message 1), rank 2 receive(f32 x 3, from 0, "
        "micro-batch 2, message 1)");
}
