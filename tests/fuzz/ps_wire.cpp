// SPDX-License-Identifier: Apache-2.0
// A server of tables that is sent frame after frame, and one that follows another: the first byte of each says which,
// the third how long its payload is. Checksums are made right; the last frame is also read as it stands.
#include "shoal/ps/wire.h"

#include <algorithm>

#include "shoal/base/memory_files_test.h"
#include "shoal/ps/answers.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  using namespace shoal::ps;
  auto rest = fuzz::bytes_of(data, size);
  fuzz::refused_or_done([&] {
    const wire::Head head = wire::head_of(rest.first(std::min(rest.size(), sizeof(wire::Head))));
    wire::check_payload(head, rest.subspan(sizeof(wire::Head)));
  });
  MemoryFiles files;
  Answers answers(0, 1, 1, [] {}, &files), copy(0, 1, 1);
  std::vector<std::byte> reply;
  for (std::uint64_t sequence = 1; rest.size() >= 3; ++sequence) {
    const auto operation =
        static_cast<std::uint8_t>(rest[0]) % static_cast<std::uint8_t>(wire::kLastOperation) + 1;
    const auto count = static_cast<std::uint32_t>(rest[1]);
    const std::size_t bytes = std::min(rest.size() - 3, 8 * static_cast<std::size_t>(rest[2]));
    // At an address that 8 divides.
    std::vector<std::uint64_t> words((sizeof(wire::Head) + bytes + 7) / 8);
    const auto frame = std::as_writable_bytes(std::span(words)).first(sizeof(wire::Head) + bytes);
    std::ranges::copy(rest.subspan(3, bytes), frame.begin() + sizeof(wire::Head));
    rest = rest.subspan(3 + bytes);
    wire::seal(frame, {.operation = static_cast<wire::Operation>(operation),
                       .table = 0,
                       .count = count,
                       .epoch = 1,
                       .client = 1,
                       .sequence = sequence});
    fuzz::refused_or_done([&] {
      const wire::Head head = wire::head_of(frame.first(sizeof(wire::Head)));
      if (Answers::is_history(head.operation)) copy.follow(head, frame.subspan(sizeof(wire::Head)));
    });
    fuzz::refused_or_done([&] {
      const wire::Head head = wire::head_of(frame.first(sizeof(wire::Head)));
      if (!answers.answer(head, frame.subspan(sizeof(wire::Head)), reply)) return;  // it waits for others
      const wire::Head answered = wire::head_of(std::span(reply).first(sizeof(wire::Head)));
      wire::check_payload(answered, std::span(reply).subspan(sizeof(wire::Head)));
    });
  }
  return 0;
}
