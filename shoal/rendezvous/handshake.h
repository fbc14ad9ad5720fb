// SPDX-License-Identifier: Apache-2.0
// Both ends of a TCP connection prove that they have the job's key. Sizes are fixed: nothing is parsed
// before.
//
//   client                                server
//     ◄── magic (8), nonce s (32)
//     ──► magic (8), nonce c (32), HMAC(key, "client" s c)
//     ◄── HMAC(key, "server" s c)                            or 32 zeros: the client does not know the key
//
// A connection that ends before has been given up for another reason; the client may try again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shoal/rendezvous/key.h"

namespace shoal::rendezvous {

constexpr std::size_t kMagicBytes = 8;
constexpr std::size_t kHelloBytes = kMagicBytes + 32;
constexpr std::size_t kAnswerBytes = kMagicBytes + 64;
using Answer = std::array<std::uint8_t, kAnswerBytes>;
constexpr Bytes32 kRefusal = {};

// The server's side. The magic, which has 8 bytes, says which protocol is to follow.
class Greeter {
 public:
  Greeter(const Key& key, std::string_view magic);
  std::string hello() const;
  // The last message; none for who does not know the key.
  std::optional<Bytes32> reply(const Answer& answer) const;

 private:
  const Key key_;
  const std::string magic_;
  const Bytes32 nonce_;
};

// The client's, for a hello that begins with the magic.
class Answerer {
 public:
  Answerer(const Key& key, std::string_view hello);
  const std::string& answer() const { return answer_; }
  bool is_right(std::string_view reply) const;
  static bool is_refusal(std::string_view reply);

 private:
  Bytes32 wanted_;
  std::string answer_;
};

}  // namespace shoal::rendezvous
