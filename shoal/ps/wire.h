// SPDX-License-Identifier: Apache-2.0
// What clients and servers say to each other after the handshake (rendezvous/handshake.h): frames,
// little-endian.
//
//   magic, version, operation, part | table, count | epoch, map | client | sequence | bytes, CRC-32C | payload
//     4        1        1        2  |   4      4   |   4     4   |   8    |    8     |   4       4    |
//
//   create   the definition as text                                ─► the table's number, in `table`
//                                                                     and the last round pushed to it
//   pull     round, workers, in halves | keys                      ─► values of their rows, float32, or float64
//            (when the pushes of so many workers up to that round      of a table of it; or bfloat16
//            are applied)
//   push     step, rate, round, worker, workers, what, 0 | keys | gradients | shows | clicks
//                                                                  ─► nothing; or the keys that others wrote
//            (a joint one when the pushes of all workers are there; gradients in bfloat16 stand last)
//   refuse   round | text                                          ─► nothing: that round is not to be
//   put      keys | values                                         ─► nothing: rows that begin with these
//   clear    nothing                                               ─► nothing: no rows are left
//   shrink   the day                                               ─► what went, and why
//            (a push, put, clear, shrink or load that comes again with its sequence is answered as before, and not
//            done again)
//   save     origin | path                                         ─► nothing: its rows are those of this moment
//            (count: 0, or the number of a delta after that origin)
//   saved    origin                                                ─► rows, removed keys and bytes of its file;
//            (count: as of the save)                                  count is 1 when it is whole, else 0
//   last save  nothing                                             ─► origin, number of deltas: what the rows that
//                                                                     changed are known since
//   load     0 | path                                              ─► the same of what was read
//   export   the least score, of 8 bytes | path                    ─► the same, of values alone
//   describe nothing                                               ─► what there is of each table, and their
//                                                                     definitions
//   digest   nothing                                               ─► the digest and the number of rows of
//                                                                     this part
//   follow   nothing                                               ─► how many changes of the part are here
//            (then the connection has the frames that change the part at its primary, in their order; each is
//            answered with nothing. With count 1 this is to begin as a copy, and has so many changes as the
//            sequence says: among the frames are then these two)
//   share    the id of a segment                                ─► nothing: from now on each frame comes behind a
//            (a client on the server's host; payloads_beside.h)       place, and large payloads do not follow it
//   state    what Answers::state() gives                           ─► all that a part is but its rows
//   rows     what Answers::rows() gives                            ─► those of one shard of a table
//
// Whoever asks for a part with another map (shard_map.h) than the server has, or asks who has not the part, is
// answered `older`: it is to look at the map, and to ask again.
//
// The CRC is that of all other bytes of the frame. Nothing here reads past what it was given, or takes memory
// that the frame has not announced within bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ps/save.h"
#include "shoal/ps/table.h"

namespace shoal::ps::wire {

constexpr std::string_view kMagic = "shoalp7\n";  // of the handshake
constexpr std::uint32_t kMostBytes = 256U << 20;  // of a payload
constexpr std::uint32_t kMostKeys = 1U << 22;     // of a frame
constexpr std::uint32_t kMostText = 1U << 16;     // of a definition or an error
constexpr std::size_t kMostUnderWay = 64;         // requests of a client without an answer, at a loop
constexpr std::uint32_t kMostWorkers = 1U << 16;  // that push together

enum class Operation : std::uint8_t {
  Create = 1,
  Pull,
  Push,
  Refuse,
  Put,
  Clear,
  Shrink,
  Digest,
  Save,
  Load,
  Done,
  Failed,
  Older,
  Follow,
  State,
  Rows,
  Export,
  Describe,
  Saved,
  LastSave,
  Share
};
constexpr Operation kLastOperation = Operation::Share;

struct Head {
  std::uint32_t magic = 0x46505353;  // "SSPF"
  std::uint8_t version = 7;
  Operation operation = Operation::Done;
  std::uint16_t part = 0;  // of the keys
  std::uint32_t table = 0, count = 0;
  std::uint32_t epoch = 0, map = 0;
  std::uint64_t client = 0, sequence = 0;
  std::uint32_t bytes = 0;  // of the payload
  std::uint32_t crc = 0;
  friend bool operator==(const Head&, const Head&) = default;
};
static_assert(sizeof(Head) == 48);

// A frame, as one piece. The head's bytes and CRC are filled in.
using Parts = std::span<const std::span<const std::byte>>;
std::vector<std::byte> frame(Head head, Parts payload);
// The same in place, of bytes that have the payload behind room for the head.
void seal(std::span<std::byte> frame, Head head);

// Throw Corrupt for what is no frame: the first by the head alone, before its payload is waited for; the
// second where anything in it is not what was sent.
Head head_of(std::span<const std::byte> bytes);
void check_payload(const Head& head, std::span<const std::byte> payload);

// What a request's payload says, borrowed from it; throw Corrupt where it is not of the size that it has to
// have. It lies at an address that 8 divides.
struct Pull {
  After after;
  std::span<const std::uint64_t> keys;
  bool in_halves = false;  // the answer is rounded to bfloat16
};
Pull pull_of(const Head& head, std::span<const std::byte> payload);
// Of a table whose rows have so many values, in double if it is wide.
struct PushAsked {
  Push push;
  bool tells_others = false;        // the answer has the keys that others wrote
  bool in_halves = false;           // gradients are rounded to bfloat16
  std::vector<float> widened = {};  // those of a frame, which `push` borrows
};
PushAsked push_of(const Head& head, std::span<const std::byte> payload, std::size_t width, bool is_wide);
// Those of an answer.
std::span<const std::uint64_t> keys_of(const Head& head, std::span<const std::byte> payload);
std::uint64_t round_of(std::span<const std::byte> payload);
SaveReport report_of(std::span<const std::byte> payload);
std::uint32_t day_of(std::span<const std::byte> payload);
struct Rows {
  std::span<const std::uint64_t> keys;
  Numbers values;
};
Rows rows_of(const Head& head, std::span<const std::byte> payload, std::size_t width, bool is_wide);
struct Note {  // why a round is not to be; a save's origin and path
  std::uint64_t number = 0;
  std::string_view text;
};
Note note_of(std::span<const std::byte> payload);

std::vector<TableState> states_of(const Head& head, std::span<const std::byte> payload);

// The same, to be sent. What they send is borrowed.
std::vector<std::byte> pull_frame(const Head& head, const Pull& pull);
std::vector<std::byte> push_frame(const Head& head, const PushAsked& asked);
std::vector<std::byte> rows_frame(const Head& head, const Rows& rows);
std::vector<std::byte> note_frame(const Head& head, const Note& note);
std::vector<std::byte> states_frame(const Head& head, std::span<const TableState> states);

// An error as a payload, and thrown from one.
std::vector<std::byte> failure(const Head& request, const Error& error);
[[noreturn]] void throw_failure(std::span<const std::byte> payload);

}  // namespace shoal::ps::wire
