// SPDX-License-Identifier: Apache-2.0
// What a store's client and server say to each other over TCP.
//
//   both          prove the job's key (handshake.h), after the magic below
//   client ──►    length, Request
//          ◄──    length, Reply              one after the other
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shoal/base/error.h"

namespace shoal::rendezvous::wire {

constexpr std::string_view kMagic = "shoal-1\n";
constexpr std::uint32_t kMostBytes = 16U << 20;  // of a request or a reply

enum class Op : std::uint8_t { Set, Get, Find, Add, CompareAndSet, Remove, NumKeys };
constexpr Op kLastOp = Op::NumKeys;

struct Request {
  Op op = Op::Find;
  std::uint64_t epoch = 0;
  std::int64_t number = 0;  // what is added; of get: nanoseconds to wait
  std::string key, value, expected;
  friend bool operator==(const Request&, const Request&) = default;
};

enum class Status : std::uint8_t { Done, Absent, TimedOut, Failed };

struct Reply {
  Status status = Status::Done;
  ErrorKind kind = ErrorKind::Internal;  // where it failed
  std::int64_t number = 0;
  std::string text;  // the value, or the error
  friend bool operator==(const Reply&, const Reply&) = default;
};

// Without the length. The second ones throw Corrupt where the bytes are not exactly one.
std::string to_bytes(const Request& request);
std::string to_bytes(const Reply& reply);
Request request_of(std::string_view bytes);
Reply reply_of(std::string_view bytes);

// Four bytes before what follows.
std::string with_length(std::string_view bytes);
std::uint32_t length_of(std::string_view four_bytes);

}  // namespace shoal::rendezvous::wire
