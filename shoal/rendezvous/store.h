// SPDX-License-Identifier: Apache-2.0
// The job's key-value store: how ranks find each other before they can talk. Small values, few of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shoal::rendezvous {

// Any thread may call; each call is atomic. Keys and values are any bytes; keys live until they are removed
// or the store ends. A store whose server is another process throws PeerLost where that has gone.
class Store {
 public:
  virtual ~Store() = default;

  virtual void set(std::string_view key, std::string_view value) = 0;  // in place of what was there
  // Waits until the key is there. Throws Timeout naming the key after `limit`.
  virtual std::string get(std::string_view key, std::chrono::nanoseconds limit) = 0;
  virtual std::optional<std::string> find(std::string_view key) = 0;  // at once; none: it is not there
  // Adds to a decimal counter that starts at 0; returns the new value. Throws InvalidInput where the key
  // holds no number.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
  // Sets the key to `desired` if it holds `expected` (empty: or is not there); returns what it holds then.
  virtual std::string compare_and_set(std::string_view key, std::string_view expected,
                                      std::string_view desired) = 0;
  virtual bool remove(std::string_view key) = 0;  // whether it was there
  virtual std::int64_t num_keys() = 0;            // that are there
};

}  // namespace shoal::rendezvous
