// SPDX-License-Identifier: Apache-2.0
// The job's key: 32 random bytes that every process of the job has and nobody else. It is handed over by an
// inherited descriptor or in a file of mode 0600, never in arguments, the environment or logs.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace shoal::rendezvous {

using Bytes32 = std::array<std::uint8_t, 32>;  // of keys and proofs

struct Key {
  Bytes32 bytes = {};  // random
  friend bool operator==(const Key&, const Key&) = default;
};

// From the kernel. Both throw Infeasible where it has none.
Bytes32 random_bytes();
Key make_key();

// Memory without a name that holds the key: closed on exec, for the caller to close. Throws Infeasible where
// the system has none.
int descriptor_of(const Key& key);
// Of an inherited descriptor, which stays open. Throws InvalidInput where it holds no key.
Key inherited_key(int descriptor);

// Makes the file, with mode 0600. Throws InvalidInput where there is one.
void write_key_file(const std::filesystem::path& path, const Key& key);
// Throws InvalidInput where others may read it, or where it holds no key.
Key read_key_file(const std::filesystem::path& path);

// HMAC-SHA256 of the parts, one after the other.
Bytes32 proof(const Key& key, std::string_view role, std::span<const std::uint8_t> first,
              std::span<const std::uint8_t> second);
// Whether they are equal, found in the same time wherever they differ.
bool same(const Bytes32& a, std::span<const std::uint8_t> b);

}  // namespace shoal::rendezvous
