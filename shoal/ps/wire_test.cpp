// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/wire.h"
#include "shoal/base/sanitized.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "shoal/base/error_test.h"
#include "shoal/ps/answers.h"

using namespace shoal;
using namespace shoal::ps;
using Bytes = std::vector<std::byte>;

static Definition definition() {
  return {.name = "ids", .shards = 4, .parts = {{.width = 2}}, .scored = true};
}

// One of each kind.
static std::vector<Bytes> frames() {
  static const std::vector<std::uint64_t> keys = {1, 2, 1ULL << 40};
  static const std::vector<float> gradients = {1, 2, 3, 4, 5, 6}, shows = {1, 1, 2}, clicks = {0, 1, 1};
  const auto head = [](wire::Operation operation, std::uint32_t count) {
    return wire::Head{.operation = operation, .count = count, .epoch = 1, .client = 5, .sequence = 3};
  };
  const std::string text = to_text(definition());
  const std::uint32_t day = 3;
  return {
      wire::frame(head(wire::Operation::Create, 0), std::array{std::as_bytes(std::span(text))}),
      wire::pull_frame(head(wire::Operation::Pull, 3), {.keys = keys}),
      wire::push_frame(head(wire::Operation::Push, 3), {.push = {.keys = keys, .gradients = gradients}}),
      wire::push_frame(head(wire::Operation::Push, 3), {.push = {.keys = keys,
                                                                 .gradients = gradients,
                                                                 .shows = shows,
                                                                 .clicks = clicks,
                                                                 .step = 9,
                                                                 .rate = 0.5,
                                                                 .of = PushOf::Differences,
                                                                 .worker = 1,
                                                                 .workers = 2,
                                                                 .round = 3},
                                                        .tells_others = true}),
      wire::pull_frame(head(wire::Operation::Pull, 3), {.keys = keys, .in_halves = true}),
      wire::push_frame(head(wire::Operation::Push, 3),
                       {.push = {.keys = keys, .gradients = gradients, .shows = shows}, .in_halves = true}),
      wire::frame(head(wire::Operation::Shrink, 0), std::array{std::as_bytes(std::span(&day, 1))}),
      wire::frame(head(wire::Operation::Digest, 0), {}),
      wire::rows_frame(head(wire::Operation::Put, 3), {keys, gradients}),
      wire::note_frame(head(wire::Operation::Refuse, 0), {7, "worker 1 cannot"}),
      wire::frame(head(wire::Operation::Clear, 0), {}),
  };
}

// As the server does: the head first, then as much as it announces.
static void read(const Bytes& bytes) {
  const auto all = std::span<const std::byte>(bytes);
  const wire::Head head = wire::head_of(all.first(std::min(all.size(), sizeof(wire::Head))));
  wire::check_payload(head, all.subspan(sizeof head));
}

static Bytes mutated(Bytes bytes, std::mt19937& random) {
  for (auto times = 1 + random() % 3; times > 0 && !bytes.empty(); --times) {
    const std::size_t at = random() % bytes.size(),
                      count = std::min<std::size_t>(random() % 9, bytes.size() - at);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 5) {
      case 0: *place ^= static_cast<std::byte>(1U << (random() % 8)); break;
      case 1: *place = static_cast<std::byte>(random()); break;
      case 2: bytes.erase(place, place + static_cast<std::ptrdiff_t>(count)); break;
      case 3: bytes.insert(place, count, static_cast<std::byte>(random())); break;
      default:
        std::rotate(place, place + static_cast<std::ptrdiff_t>(count / 2),
                    place + static_cast<std::ptrdiff_t>(count));
    }
  }
  return bytes;
}

static constexpr int kMutations = kIsSanitized ? 50'000 : 1'000'000;

TEST_CASE("of a million mutated frames none is accepted") {
  std::mt19937 random(1);
  const auto whole = frames();
  int accepted = 0, mutations = 0;
  for (const Bytes& frame : whole) CHECK_NOTHROW(read(frame));
  while (mutations < kMutations) {
    const Bytes& frame = whole[random() % whole.size()];
    const Bytes bytes = mutated(frame, random);
    if (bytes == frame) continue;
    ++mutations;
    try {
      read(bytes);
      ++accepted;
    } catch (const Error&) {
      continue;
    }
  }
  CHECK(accepted == 0);
}

TEST_CASE("mutated frames whose checksum was made right are answered or refused, within their bounds") {
  std::mt19937 random(2);
  const auto whole = frames();
  Answers answers(0, 1, 1);
  Bytes reply;
  int done = 0, refused = 0;
  std::uint64_t sequence = 0;
  for (int i = 0; i < kMutations / 10; ++i) {
    Bytes bytes = mutated(whole[random() % whole.size()], random);
    if (bytes.size() < sizeof(wire::Head)) continue;
    wire::Head head;
    std::memcpy(&head, bytes.data(), sizeof head);
    head.sequence = ++sequence;
    head.client %= 4;
    wire::seal(bytes, head);
    try {
      const auto all = std::span<const std::byte>(bytes);
      const wire::Head got = wire::head_of(all.first(sizeof head));
      const Bytes payload(all.begin() + sizeof head,
                          all.end());  // at an address of its own, as it is received
      answers.answer(got, payload, reply);
      std::memcpy(&head, reply.data(), sizeof head);
      ++(head.operation == wire::Operation::Done ? done : refused);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Corrupt);
    }
  }
  CHECK(done > 0);
  CHECK(refused > 0);
}

TEST_CASE("a push is what was sent") {
  const Bytes frame = frames()[3];
  const auto all = std::span<const std::byte>(frame);
  const wire::Head head = wire::head_of(all.first(sizeof(wire::Head)));
  const Bytes payload(all.begin() + sizeof head, all.end());
  const auto asked = wire::push_of(head, payload, 2, false);
  const Push& push = asked.push;
  CHECK(std::ranges::equal(push.keys, std::array<std::uint64_t, 3>{1, 2, 1ULL << 40}));
  CHECK(std::ranges::equal(push.gradients.of<float>(), std::array<float, 6>{1, 2, 3, 4, 5, 6}));
  CHECK(std::ranges::equal(push.shows, std::array<float, 3>{1, 1, 2}));
  CHECK(std::ranges::equal(push.clicks, std::array<float, 3>{0, 1, 1}));
  CHECK(push.step == 9);
  CHECK(push.rate == 0.5f);
  CHECK(push.of == PushOf::Differences);
  CHECK(std::tuple(push.worker, push.workers, push.round, push.is_joint) == std::tuple(1, 2, 3, false));
  CHECK(asked.tells_others);
  CHECK(error_of([&] { wire::push_of(head, payload, 3, false); }) ==
        "ps: a frame has fewer bytes than its count says");
  CHECK(error_of([&] { wire::push_of(head, payload, 1, false); }) ==
        "ps: a frame has more bytes than its count says");
}

TEST_CASE("a frame that announces too much is refused before its payload is waited for") {
  wire::Head head = {.operation = wire::Operation::Pull, .count = 1, .bytes = wire::kMostBytes + 1};
  const auto refusal = [&] { return error_of([&] { wire::head_of(std::as_bytes(std::span(&head, 1))); }); };
  CHECK(refusal() == "ps: a frame announces 1 keys and 268435457 bytes");
  head.bytes = 0;
  head.version = 1;
  CHECK(refusal() == "ps: a frame of version 1, wanted 7; do all processes run the same Shoal?");
}

TEST_CASE("a push or shrink that comes again is answered again and not done again") {
  Answers answers(0, 1, 1);
  Bytes first, second;
  const auto ask = [&](wire::Operation operation, std::uint64_t sequence, Bytes& reply) {
    for (const Bytes& frame : frames()) {
      wire::Head head;
      std::memcpy(&head, frame.data(), sizeof head);
      if (head.operation != operation) continue;
      head.sequence = sequence;
      Bytes bytes = frame;
      wire::seal(bytes, head);
      const auto all = std::span<const std::byte>(bytes);
      const Bytes payload(all.begin() + sizeof head, all.end());
      answers.answer(wire::head_of(all.first(sizeof head)), payload, reply);
      return;
    }
  };
  const auto digest = [&] {
    Bytes reply;
    ask(wire::Operation::Digest, 99, reply);
    return Bytes(reply.begin() + sizeof(wire::Head), reply.end());
  };
  ask(wire::Operation::Create, 1, first);
  ask(wire::Operation::Push, 2, first);
  const Bytes after = digest();
  ask(wire::Operation::Push, 2, second);
  CHECK(second == first);
  CHECK(digest() == after);
  CHECK(answers.num_applied() == 1);
  ask(wire::Operation::Push, 3, second);
  CHECK(digest() != after);
  CHECK(answers.num_applied() == 2);
  ask(wire::Operation::Push, 2, second);  // the one before is remembered too, as several are under way
  CHECK(second == first);
  ask(wire::Operation::Push, 1, second);
  CHECK(error_of([&] { wire::throw_failure(std::span(second).subspan(sizeof(wire::Head))); }) ==
        "ps: request 1 of a client whose request 3 was done already");
  CHECK(answers.num_applied() == 2);
}
