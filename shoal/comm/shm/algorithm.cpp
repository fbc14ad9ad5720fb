// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/shm/algorithm.h"

#include <algorithm>
#include <array>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "shoal/base/error.h"
#include "shoal/comm/reduce.h"
#include "shoal/comm/shm/group.h"

namespace shoal::comm::shm {

static constexpr const Algorithm* kAlgorithms[] = {&kAllGather, &kAllReduce, &kAllToAll,      &kBroadcast,
                                                   &kGather,    &kReduce,    &kReduceScatter, &kScatter};

const Algorithm& algorithm_of(Op op) {
  for (const Algorithm* algorithm : kAlgorithms)
    if (algorithm->op == op) return *algorithm;
  fail(ErrorKind::Internal, "shm: no algorithm of ", name_of(op));
}

Share share_of(std::int64_t count, std::int64_t element, int rank, int size) {
  const std::int64_t line = 64 / element, lines = (count + line - 1) / line;
  const std::int64_t first = std::min(count, lines * rank / size * line);
  return {first, std::min(count, lines * (rank + 1) / size * line) - first};
}

// Stores that go past the caches do not first read what they write over: a third of the traffic of memory.
static void copy_past_caches(const std::byte* from, std::byte* to, std::int64_t num_bytes) {
#ifdef __x86_64__
  const std::int64_t head = -reinterpret_cast<std::intptr_t>(to) & 63;
  std::memcpy(to, from, static_cast<std::size_t>(head));
  std::int64_t at = head;
  for (; at + 64 <= num_bytes; at += 64)
    for (int i = 0; i < 64; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + i),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i)));
  _mm_sfence();
  std::memcpy(to + at, from + at, static_cast<std::size_t>(num_bytes - at));
#else
  std::memcpy(to, from, static_cast<std::size_t>(num_bytes));
#endif
}

void Turn::copy(const std::byte* from, std::byte* to, std::int64_t num_bytes) const {
  if (past_caches && num_bytes >= 4096) return copy_past_caches(from, to, num_bytes);
  std::memcpy(to, from, static_cast<std::size_t>(num_bytes));
}

void Turn::pull(int other, const std::byte* from, std::byte* to, std::int64_t num_bytes) const {
  if (num_bytes == 0) return;
  copy(from, to, num_bytes);
  traffic->pulled[static_cast<std::size_t>(other)] += num_bytes;
}

void Turn::push(int other, const std::byte* from, std::byte* to, std::int64_t num_bytes) const {
  if (num_bytes == 0) return;
  copy(from, to, num_bytes);
  traffic->pushed[static_cast<std::size_t>(other)] += num_bytes;
}

void Turn::keep(const std::byte* from, std::byte* to, std::int64_t num_bytes) const {
  if (num_bytes == 0 || from == to) return;
  copy(from, to, num_bytes);
}

void Turn::reduce_all(std::span<std::byte* const> from, std::int64_t offset, std::span<const Target> to,
                      std::int64_t num_elements) const {
  if (num_elements == 0) return;
  const std::int64_t num_bytes = num_elements * element;
  std::array<const std::byte*, kMaxRanks> inputs;
  std::array<std::byte*, kMaxRanks> outputs;
  for (std::size_t r = 0; r < from.size(); ++r) {
    inputs[r] = from[r] + offset;
    if (static_cast<int>(r) != rank) traffic->pulled[r] += num_bytes;
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    outputs[i] = to[i].data;
    if (to[i].rank != rank) traffic->pushed[static_cast<std::size_t>(to[i].rank)] += num_bytes;
  }
  reduce({.dtype = call.dtype, .op = call.reduce, .count = num_elements},
         std::span(inputs).first(from.size()), std::span(outputs).first(to.size()));
}

}  // namespace shoal::comm::shm
