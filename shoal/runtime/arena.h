// SPDX-License-Identifier: Apache-2.0
// A row of memory that large blocks are cut from. A freed block joins the free ones beside it, so that what
// was two tensors can be one next, and the row gets hardly longer than what is alive at once:
//
//   |████ a ████|▒▒▒▒ free ▒▒▒▒|██ b ██|▒▒ free ▒▒|   addresses alone …
//                                                 ^ end_
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace shoal::runtime {

// One thread at a time. Never destroyed: blocks outlive everything.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 64;

  // Reserves addresses, and takes no memory.
  Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The least free part that is large enough, or one behind all others. `bytes` is a multiple of kAlignment.
  // Null where the addresses do not suffice.
  std::byte* take(std::size_t bytes);
  void give(std::byte* block, std::size_t bytes);

  // What is free and still in memory, or more.
  std::int64_t idle_bytes() const { return idle_bytes_; }
  // Gives the free part with the most such memory back to the system. False where there is none.
  bool give_back();

 private:
  struct Free {
    std::size_t bytes = 0;
    std::size_t in_memory = 0;  // at most
  };
  using Parts = std::map<std::byte*, Free>;

  void add(std::byte* at, Free free);
  Free remove(Parts::iterator part);

  std::byte *begin_ = nullptr, *end_ = nullptr, *limit_ = nullptr;
  std::byte* usable_ = nullptr;  // before it may be read and written
  Parts free_;
  std::set<std::pair<std::size_t, std::byte*>> by_size_;
  std::int64_t idle_bytes_ = 0;
};

}  // namespace shoal::runtime
