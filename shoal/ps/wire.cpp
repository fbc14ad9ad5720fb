// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/wire.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "shoal/base/crc32c.h"
#include "shoal/ps/row_optimizer.h"

namespace shoal::ps::wire {

static_assert(std::endian::native == std::endian::little,
              "frames are structs and arrays as they lie in memory");

namespace {

struct PullHead {
  std::uint64_t round = 0;
  std::uint32_t workers = 0;
  std::uint32_t in_halves = 0;
};
static_assert(sizeof(PullHead) == 16);

struct PushHead {
  std::uint64_t step = 0;
  double rate = 1;
  std::uint64_t round = 0;
  std::uint32_t worker = 0, workers = 0;
  std::uint32_t with = 0;  // bits
  std::uint32_t zero = 0;
};
static_assert(sizeof(PushHead) == 40);

struct StateHead {
  std::uint32_t text = 0;  // bytes
  std::uint32_t day = 0;
  std::int64_t rows = 0, cold_rows = 0, bytes = 0;
  std::uint64_t pulled = 0, pushed = 0;
};
static_assert(sizeof(StateHead) == 48);

enum With : std::uint32_t {
  Shows = 1,
  Clicks = 2,
  Joint = 4,
  Differences = 8,
  TellsOthers = 16,
  Halves = 32,
  End = 64
};

}  // namespace

static std::uint32_t crc_of(Head head, Parts payload) {
  head.crc = 0;
  std::uint32_t crc = crc32c(std::as_bytes(std::span(&head, 1)));
  for (const auto part : payload) crc = crc32c(part, crc);
  return crc;
}

std::vector<std::byte> frame(Head head, Parts payload) {
  std::size_t bytes = 0;
  for (const auto part : payload) bytes += part.size();
  SHOAL_CHECK(bytes <= kMostBytes && head.count <= kMostKeys, InvalidInput, "ps: a request of ", head.count,
              " keys and ", bytes, " bytes; at most ", kMostKeys, " keys and ", kMostBytes,
              " bytes go at once");
  std::vector<std::byte> all(sizeof head + bytes);
  std::size_t at = sizeof head;
  for (const auto part : payload) {
    if (!part.empty()) std::memcpy(all.data() + at, part.data(), part.size());
    at += part.size();
  }
  seal(all, head);
  return all;
}

void seal(std::span<std::byte> frame, Head head) {
  const std::span<const std::byte> payload = frame.subspan(sizeof head);
  head.bytes = static_cast<std::uint32_t>(payload.size());
  head.crc = crc_of(head, std::array{payload});
  std::memcpy(frame.data(), &head, sizeof head);
}

Head head_of(std::span<const std::byte> bytes) {
  SHOAL_CHECK(bytes.size() == sizeof(Head), Corrupt, "ps: a frame's head is cut short");
  const auto operation = std::to_integer<std::uint8_t>(bytes[offsetof(Head, operation)]);
  SHOAL_CHECK(operation >= 1 && operation <= static_cast<std::uint8_t>(kLastOperation), Corrupt,
              "ps: a frame has operation ", int{operation}, ", which there is not");
  Head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  SHOAL_CHECK(head.magic == Head{}.magic, Corrupt, "ps: no frame begins like this");
  SHOAL_CHECK(head.version == Head{}.version, Corrupt, "ps: a frame of version ", int{head.version},
              ", wanted ", int{Head{}.version}, "; do all processes run the same Shoal?");
  SHOAL_CHECK(head.bytes <= kMostBytes && head.count <= kMostKeys, Corrupt, "ps: a frame announces ",
              head.count, " keys and ", head.bytes, " bytes");
  return head;
}

void check_payload(const Head& head, std::span<const std::byte> payload) {
  SHOAL_CHECK(payload.size() == head.bytes, Corrupt, "ps: a frame's payload is cut short");
  SHOAL_CHECK(crc_of(head, std::array{payload}) == head.crc, Corrupt, "ps: a frame's checksum is wrong");
}

template <class T>
static std::span<const T> taken(std::span<const std::byte>& from, std::size_t count) {
  SHOAL_CHECK(from.size() >= count * sizeof(T), Corrupt, "ps: a frame has fewer bytes than its count says");
  const std::span<const T> all(reinterpret_cast<const T*>(from.data()), count);
  from = from.subspan(count * sizeof(T));
  return all;
}

static void check_end(std::span<const std::byte> left) {
  SHOAL_CHECK(left.empty(), Corrupt, "ps: a frame has more bytes than its count says");
}

Pull pull_of(const Head& head, std::span<const std::byte> payload) {
  const PullHead& begin = taken<PullHead>(payload, 1)[0];
  SHOAL_CHECK(begin.in_halves <= 1 && begin.workers <= kMostWorkers, Corrupt, "ps: a pull after pushes of ",
              begin.workers, " workers");
  return {.after = {.round = begin.round, .workers = begin.workers},
          .keys = keys_of(head, payload),
          .in_halves = begin.in_halves == 1};
}

std::vector<std::byte> pull_frame(const Head& head, const Pull& pull) {
  const PullHead begin = {
      .round = pull.after.round, .workers = pull.after.workers, .in_halves = pull.in_halves ? 1U : 0U};
  return frame(head, std::array{std::as_bytes(std::span(&begin, 1)), std::as_bytes(pull.keys)});
}

std::uint64_t round_of(std::span<const std::byte> payload) {
  const std::uint64_t round = taken<std::uint64_t>(payload, 1)[0];
  check_end(payload);
  return round;
}

std::span<const std::uint64_t> keys_of(const Head& head, std::span<const std::byte> payload) {
  const auto keys = taken<std::uint64_t>(payload, head.count);
  check_end(payload);
  return keys;
}

static Numbers numbers(std::span<const std::byte>& from, std::size_t count, bool is_wide) {
  return with_number(is_wide, [&](auto number) { return Numbers(taken<decltype(number)>(from, count)); });
}

PushAsked push_of(const Head& head, std::span<const std::byte> payload, std::size_t width, bool is_wide) {
  const PushHead& begin = taken<PushHead>(payload, 1)[0];
  SHOAL_CHECK(begin.with < With::End && begin.zero == 0, Corrupt,
              "ps: a push has what there is not: ", begin.with);
  const auto has = [&](With what) { return (begin.with & what) != 0; };
  SHOAL_CHECK(begin.workers == 0
                  ? begin.worker == 0 && !has(With::Joint)
                  : begin.worker < begin.workers && begin.workers <= kMostWorkers && begin.round > 0,
              Corrupt, "ps: push ", begin.round, " of worker ", begin.worker, " of ", begin.workers);
  Push push = {.step = begin.step,
               .rate = begin.rate,
               .of = has(With::Differences) ? PushOf::Differences : PushOf::Gradients,
               .worker = begin.worker,
               .workers = begin.workers,
               .round = begin.round,
               .is_joint = has(With::Joint)};
  PushAsked asked = {.push = {}, .tells_others = has(With::TellsOthers), .in_halves = has(With::Halves)};
  SHOAL_CHECK(!asked.in_halves || !is_wide, Corrupt, "ps: gradients of a table of float64 in bfloat16");
  push.keys = taken<std::uint64_t>(payload, head.count);
  if (!asked.in_halves) push.gradients = numbers(payload, head.count * width, is_wide);
  if (has(With::Shows)) push.shows = taken<float>(payload, head.count);
  if (has(With::Clicks)) push.clicks = taken<float>(payload, head.count);
  if (asked.in_halves) {
    const auto halves = taken<std::uint16_t>(payload, head.count * width);
    asked.widened.resize(halves.size());
    widen(halves, asked.widened);
    push.gradients = asked.widened;
  }
  check_end(payload);
  asked.push = push;
  return asked;
}

std::vector<std::byte> push_frame(const Head& head, const PushAsked& asked) {
  const Push& push = asked.push;
  std::uint32_t with = 0;
  if (!push.shows.empty()) with |= With::Shows;
  if (!push.clicks.empty()) with |= With::Clicks;
  if (push.is_joint) with |= With::Joint;
  if (push.of == PushOf::Differences) with |= With::Differences;
  if (asked.tells_others) with |= With::TellsOthers;
  if (asked.in_halves) with |= With::Halves;
  const PushHead begin = {.step = push.step,
                          .rate = push.rate,
                          .round = push.round,
                          .worker = push.worker,
                          .workers = push.workers,
                          .with = with};
  std::vector<std::uint16_t> halves(asked.in_halves ? push.gradients.size() : 0);
  if (asked.in_halves) narrow_to_nearest(push.gradients.of<float>(), halves);
  return frame(head, std::array{std::as_bytes(std::span(&begin, 1)), std::as_bytes(push.keys),
                                asked.in_halves ? std::span<const std::byte>() : push.gradients.bytes(),
                                std::as_bytes(push.shows), std::as_bytes(push.clicks),
                                std::as_bytes(std::span(halves))});
}

Rows rows_of(const Head& head, std::span<const std::byte> payload, std::size_t width, bool is_wide) {
  Rows rows = {.keys = taken<std::uint64_t>(payload, head.count), .values = {}};
  rows.values = numbers(payload, head.count * width, is_wide);
  check_end(payload);
  return rows;
}

std::vector<std::byte> rows_frame(const Head& head, const Rows& rows) {
  return frame(head, std::array{std::as_bytes(rows.keys), rows.values.bytes()});
}

Note note_of(std::span<const std::byte> payload) {
  const std::uint64_t number = taken<std::uint64_t>(payload, 1)[0];
  SHOAL_CHECK(payload.size() <= kMostText, Corrupt, "ps: a text of ", payload.size(), " bytes");
  return {.number = number, .text = {reinterpret_cast<const char*>(payload.data()), payload.size()}};
}

std::vector<std::byte> note_frame(const Head& head, const Note& note) {
  return frame(head, std::array{std::as_bytes(std::span(&note.number, 1)),
                                std::as_bytes(std::span(note.text.substr(0, kMostText)))});
}

std::vector<TableState> states_of(const Head& head, std::span<const std::byte> payload) {
  std::vector<TableState> states;
  for (const StateHead& each : taken<StateHead>(payload, head.count)) {
    SHOAL_CHECK(each.text <= kMostText, Corrupt, "ps: a text of ", each.text, " bytes");
    states.push_back({.definition = std::string(each.text, ' '),
                      .day = each.day,
                      .rows = each.rows,
                      .cold_rows = each.cold_rows,
                      .bytes = each.bytes,
                      .pulled = each.pulled,
                      .pushed = each.pushed});
  }
  for (TableState& state : states) {
    const auto text = taken<char>(payload, state.definition.size());
    state.definition.assign(text.begin(), text.end());
  }
  check_end(payload);
  return states;
}

std::vector<std::byte> states_frame(const Head& head, std::span<const TableState> states) {
  std::vector<StateHead> heads;
  std::string texts;
  for (const TableState& state : states) {
    heads.push_back({.text = static_cast<std::uint32_t>(state.definition.size()),
                     .day = state.day,
                     .rows = state.rows,
                     .cold_rows = state.cold_rows,
                     .bytes = state.bytes,
                     .pulled = state.pulled,
                     .pushed = state.pushed});
    texts += state.definition;
  }
  Head counted = head;
  counted.count = static_cast<std::uint32_t>(states.size());
  return frame(counted, std::array{std::as_bytes(std::span(heads)), std::as_bytes(std::span(texts))});
}

SaveReport report_of(std::span<const std::byte> payload) {
  const SaveReport report = taken<SaveReport>(payload, 1)[0];
  check_end(payload);
  return report;
}

std::uint32_t day_of(std::span<const std::byte> payload) {
  const std::uint32_t day = taken<std::uint32_t>(payload, 1)[0];
  check_end(payload);
  return day;
}

std::vector<std::byte> failure(const Head& request, const Error& error) {
  Head head = request;
  head.operation = Operation::Failed;
  head.count = 0;
  const auto kind = static_cast<std::uint8_t>(error.kind());
  const std::string_view text = std::string_view(error.what()).substr(0, kMostText);
  return frame(head, std::array{std::as_bytes(std::span(&kind, 1)), std::as_bytes(std::span(text))});
}

void throw_failure(std::span<const std::byte> payload) {
  SHOAL_CHECK(!payload.empty() && payload.size() <= kMostText + 1, Corrupt, "ps: an error of ",
              payload.size(), " bytes");
  const auto kind = std::to_integer<std::uint8_t>(payload[0]);
  SHOAL_CHECK(kind <= static_cast<std::uint8_t>(ErrorKind::Internal), Corrupt,
              "ps: an error of an unknown kind");
  throw Error(static_cast<ErrorKind>(kind),
              std::string(reinterpret_cast<const char*>(payload.data()) + 1, payload.size() - 1));
}

}  // namespace shoal::ps::wire
