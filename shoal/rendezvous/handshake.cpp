// SPDX-License-Identifier: Apache-2.0
#include "shoal/rendezvous/handshake.h"

#include <cstring>

#include "shoal/base/error.h"

namespace shoal::rendezvous {

static std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

static void append(std::string& to, const Bytes32& bytes) {
  to.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Greeter::Greeter(const Key& key, std::string_view magic) : key_(key), magic_(magic), nonce_(random_bytes()) {
  SHOAL_CHECK(magic.size() == kMagicBytes, Internal, "rendezvous: a magic has ", kMagicBytes, " bytes");
}

std::string Greeter::hello() const {
  std::string hello = magic_;
  append(hello, nonce_);
  return hello;
}

std::optional<Bytes32> Greeter::reply(const Answer& answer) const {
  const auto all = std::span<const std::uint8_t>(answer);
  const auto theirs = all.subspan(kMagicBytes, 32);
  if (std::memcmp(all.data(), magic_.data(), kMagicBytes) != 0 ||
      !same(proof(key_, "client", nonce_, theirs), all.last(32)))
    return std::nullopt;
  return proof(key_, "server", nonce_, theirs);
}

Answerer::Answerer(const Key& key, std::string_view hello) : answer_(hello.substr(0, kMagicBytes)) {
  SHOAL_CHECK(hello.size() == kHelloBytes, Internal, "rendezvous: a hello has ", kHelloBytes, " bytes");
  const auto theirs = bytes_of(hello.substr(kMagicBytes));
  const Bytes32 nonce = random_bytes();
  append(answer_, nonce);
  append(answer_, proof(key, "client", theirs, nonce));
  wanted_ = proof(key, "server", theirs, nonce);
}

bool Answerer::is_right(std::string_view reply) const { return same(wanted_, bytes_of(reply)); }
bool Answerer::is_refusal(std::string_view reply) { return same(kRefusal, bytes_of(reply)); }

}  // namespace shoal::rendezvous
