// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/arena.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace arena_test {

using namespace shoal::runtime;

static constexpr std::size_t kBlock = std::size_t{1} << 20;

TEST_CASE("freed neighbours are one part again, whichever goes first") {
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}}) {
    Arena arena;
    std::byte* blocks[3];
    for (std::byte*& block : blocks) block = arena.take(kBlock);
    std::byte* wall = arena.take(kBlock);
    for (const int i : order) arena.give(blocks[i], kBlock);
    CHECK(arena.idle_bytes() == 3 * kBlock);
    CHECK(arena.take(3 * kBlock) == blocks[0]);
    CHECK(arena.idle_bytes() == 0);
    arena.give(wall, kBlock);
  }
}

TEST_CASE("a block is cut from the least part that is large enough, at its lower end") {
  Arena arena;
  std::byte* large = arena.take(4 * kBlock);
  arena.take(kBlock);
  std::byte* small = arena.take(2 * kBlock);
  std::byte* wall = arena.take(kBlock);
  arena.give(large, 4 * kBlock);
  arena.give(small, 2 * kBlock);
  CHECK(arena.take(kBlock) == small);
  CHECK(arena.take(kBlock) == small + kBlock);
  CHECK(arena.take(kBlock) == large);
  CHECK(arena.take(4 * kBlock) == wall + kBlock);  // behind all, since nothing else is so large
}

TEST_CASE("what is free at the end is part of what is taken there") {
  Arena arena;
  std::byte* first = arena.take(kBlock);
  arena.give(first, kBlock);
  CHECK(arena.take(3 * kBlock) == first);
}

TEST_CASE("what is given back to the system reads as zeros when it is taken again") {
  Arena arena;
  std::byte* block = arena.take(kBlock);
  std::memset(block, 7, kBlock);
  arena.give(block, kBlock);
  CHECK(arena.give_back(kBlock));
  CHECK(arena.idle_bytes() == 0);
  CHECK_FALSE(arena.give_back(kBlock));
  CHECK(arena.take(kBlock) == block);
  // But for the pages that are cut at its ends.
  CHECK(
      std::all_of(block + 8192, block + kBlock - 8192, [](std::byte each) { return each == std::byte{0}; }));
}

TEST_CASE("as much goes back as is asked for, from the upper end of the part that has the most in memory") {
  Arena arena;
  std::byte* small = arena.take(kBlock);
  arena.take(kBlock);
  std::byte* large = arena.take(4 * kBlock);
  arena.take(kBlock);
  std::memset(large, 7, 4 * kBlock);
  arena.give(small, kBlock);
  arena.give(large, 4 * kBlock);
  CHECK(arena.give_back(kBlock));
  CHECK(arena.idle_bytes() == 4 * kBlock);
  CHECK(arena.take(4 * kBlock) == large);
  CHECK(large[3 * kBlock - 8192] == std::byte{7});
  CHECK(large[3 * kBlock + 8192] == std::byte{0});
}

TEST_CASE("what was given back and not taken since does not count as idle") {
  Arena arena;
  std::byte* block = arena.take(4 * kBlock);
  arena.take(kBlock);
  arena.give(block, 4 * kBlock);
  CHECK(arena.give_back(2 * kBlock));
  CHECK(arena.idle_bytes() == 2 * kBlock);
  for (int i = 0; i < 2; ++i) {  // of what is in memory
    CHECK(arena.take(kBlock) == block);
    CHECK(arena.idle_bytes() == kBlock);
    arena.give(block, kBlock);
    CHECK(arena.idle_bytes() == 2 * kBlock);
  }
  CHECK(arena.take(3 * kBlock) == block);
  CHECK(arena.idle_bytes() == 0);
  arena.give(block, 3 * kBlock);
  CHECK(arena.idle_bytes() == 3 * kBlock);
  CHECK(arena.give_back(100 * kBlock));  // all that there is
  CHECK(arena.idle_bytes() == 0);
}

TEST_CASE("more than there are addresses is refused, and leaves the arena as it was") {
  Arena arena;
  std::byte* block = arena.take(kBlock);
  CHECK(arena.take(std::size_t{1} << 50) == nullptr);
  CHECK(arena.take(kBlock) == block + kBlock);
}

TEST_CASE("blocks of any sizes never overlap, and what all have left is one part") {
  struct Taken {
    std::byte* block;
    std::size_t bytes;
    unsigned char mark;
  };
  std::mt19937_64 random(0);
  Arena arena;
  std::vector<Taken> taken;
  std::byte* begin = arena.take(Arena::kAlignment);
  const auto holds = [](const Taken& each) {
    return std::all_of(each.block, each.block + each.bytes,
                       [&](std::byte byte) { return byte == std::byte{each.mark}; });
  };
  for (int i = 0; i < 3000; ++i) {
    if (taken.empty() || random() % 2 == 0) {
      const std::size_t bytes = Arena::kAlignment * (1 + random() % 200);
      const auto mark = static_cast<unsigned char>(random());
      std::byte* block = arena.take(bytes);
      std::memset(block, mark, bytes);
      taken.push_back({block, bytes, mark});
    } else {
      const std::size_t at = random() % taken.size();
      REQUIRE(holds(taken[at]));
      arena.give(taken[at].block, taken[at].bytes);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (random() % 100 == 0) arena.give_back(static_cast<std::int64_t>(random() % 20000));
  }
  for (const Taken& each : taken) arena.give(each.block, each.bytes);
  while (arena.give_back(kBlock)) {
  }
  arena.give(begin, Arena::kAlignment);
  CHECK(arena.idle_bytes() == static_cast<std::int64_t>(Arena::kAlignment));
  CHECK(arena.take(kBlock) == begin);
}

}  // namespace arena_test
