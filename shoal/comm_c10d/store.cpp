// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm_c10d/store.h"

#include <utility>

namespace shoal::comm_c10d {

static std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

static std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

PrefixedStore::PrefixedStore(rendezvous::Store& store, std::string prefix, std::chrono::milliseconds limit)
    : c10d::Store(limit), store_(store), prefix_(std::move(prefix)) {}

void PrefixedStore::remove_own_keys() {
  for (const std::string& key : own_keys_) store_.remove(key);
  own_keys_.clear();
}

c10::intrusive_ptr<c10d::Store> PrefixedStore::clone() {
  return c10::make_intrusive<PrefixedStore>(store_, prefix_, timeout_);
}

void PrefixedStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  own_keys_.push_back(prefix_ + key);
  store_.set(own_keys_.back(), text_of(value));
}

std::vector<std::uint8_t> PrefixedStore::compareSet(const std::string& key,
                                                    const std::vector<std::uint8_t>& expected,
                                                    const std::vector<std::uint8_t>& desired) {
  return bytes_of(store_.compare_and_set(prefix_ + key, text_of(expected), text_of(desired)));
}

std::vector<std::uint8_t> PrefixedStore::get(const std::string& key) {
  return bytes_of(store_.get(prefix_ + key, timeout_));
}

std::int64_t PrefixedStore::add(const std::string& key, std::int64_t amount) {
  return store_.add(prefix_ + key, amount);
}

bool PrefixedStore::deleteKey(const std::string& key) { return store_.remove(prefix_ + key); }

bool PrefixedStore::check(const std::vector<std::string>& keys) {
  for (const std::string& key : keys)
    if (!store_.find(prefix_ + key)) return false;
  return true;
}

std::int64_t PrefixedStore::getNumKeys() { return store_.num_keys(); }

void PrefixedStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void PrefixedStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (const std::string& key : keys) store_.get(prefix_ + key, end - std::chrono::steady_clock::now());
}

}  // namespace shoal::comm_c10d
