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

  // What is free and still in memory, where all of a block is written to.
  std::int64_t idle_bytes() const { return in_memory_bytes_ - taken_bytes_; }
  // Gives so much of the free part with the most such memory back to the system, or all that it has: at its upper end,
  // as blocks are cut from the lower one. False where there is none.
  bool give_back(std::int64_t bytes);

 private:
  using Parts = std::map<std::byte*, std::size_t>;  // and how many bytes

  void add(std::byte* at, std::size_t bytes);
  std::size_t remove(Parts::iterator part);
  // From now on [begin, end) is in memory, or is not.
  void touch(std::byte* begin, std::byte* end);
  void leave(std::byte* begin, std::byte* end);
  // Where the last `bytes` of [begin, end) that are in memory begin, and how many of them there are.
  std::pair<std::byte*, std::int64_t> last_in_memory(std::byte* begin, std::byte* end,
                                                     std::int64_t bytes) const;

  std::byte *begin_ = nullptr, *end_ = nullptr, *limit_ = nullptr;
  std::byte* usable_ = nullptr;  // before it may be read and written
  Parts free_;
  std::set<std::pair<std::size_t, std::byte*>> by_size_;
  std::map<std::byte*, std::byte*> in_memory_;  // from where to where, with a gap between any two
  std::int64_t in_memory_bytes_ = 0, taken_bytes_ = 0;
};

}  // namespace shoal::runtime
