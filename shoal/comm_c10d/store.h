// SPDX-License-Identifier: Apache-2.0
// The job's store as LibTorch's process groups want it: each key under a prefix, and gone again when asked.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shoal/rendezvous/store.h"

namespace shoal::comm_c10d {

class PrefixedStore final : public c10d::Store {
 public:
  // `store` is borrowed, and outlives this.
  PrefixedStore(rendezvous::Store& store, std::string prefix, std::chrono::milliseconds limit);

  // Removes what was set here, once no rank reads it any more.
  void remove_own_keys();

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& limit) override;

 private:
  rendezvous::Store& store_;
  std::string prefix_;
  std::vector<std::string> own_keys_;
};

}  // namespace shoal::comm_c10d
