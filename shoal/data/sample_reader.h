// SPDX-License-Identifier: Apache-2.0
// Samples from text files, for several workers. An epoch's order of parts, and of the lines of each block, is
// drawn from (seed, epoch); worker r of n takes every n-th part from the r-th on.
//
//   parts, drawn   4  0  3  1  2        of 2 workers:  4 3 2 | 0 1
//   lines of one   17 3 0 22 …          drawn within a block of shuffle_bytes
//
// Where each worker is, is a list of parts with how many of their lines it has had: saved and dealt out anew
// it goes on with any number of workers, each line once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "shoal/data/line_files.h"
#include "shoal/data/line_parser.h"

namespace shoal::data {

struct ReadOptions {                      // alike for all workers
  std::uint64_t seed = 0;                 // of all orders
  bool is_shuffled = true;                // false: files and lines in their order
  std::int64_t shuffle_bytes = 16 << 20;  // of a part, and of the block that lines are drawn from
  std::int64_t max_malformed = 0;         // lines that are skipped, an epoch and worker; one more is an error
};

struct Unread {             // a part of the files
  std::uint64_t part = 0;   // its number
  std::uint64_t lines = 0;  // that were read, in their order
  friend bool operator==(const Unread&, const Unread&) = default;
};

struct ReadPosition {          // of one worker
  std::uint64_t key = 0;       // of the files and options
  std::int64_t epoch = 0;      // which it is in
  std::vector<Unread> unread;  // the first may be read in part
  friend bool operator==(const ReadPosition&, const ReadPosition&) = default;
};

// The position of one worker as text, and back; throws Corrupt for what is none.
std::string to_text(const ReadPosition& position);
ReadPosition read_position_from_text(std::string_view text);

// What all workers have not read, for `workers` ones. Throws InvalidInput where they are not in one epoch of
// the same files, and for fewer than one worker.
std::vector<ReadPosition> dealt(std::span<const ReadPosition> positions, int workers);

// One thread at a time.
class SampleReader {
 public:
  // Borrows `files` and `parser`. Throws InvalidInput where there are no files, or one is not there.
  SampleReader(FileSystem& files, std::vector<std::filesystem::path> paths, const LineParser& parser,
               ReadOptions options = {});

  // This worker's parts of that epoch, from their begin; epoch 0 of one worker at first. Throws InvalidInput
  // for a worker outside of them.
  void begin(std::int64_t epoch, int worker = 0, int workers = 1);
  // Goes on where another reader was. Throws InvalidInput when that one read other files, or otherwise;
  // Corrupt for a part that there is not.
  void resume(const ReadPosition& position);
  const ReadPosition& position() const { return position_; }  // behind what was read

  // Puts up to `size` samples into `batch`; fewer only at the end of the epoch, which it then is. Throws
  // InvalidInput naming file, line and slot of the malformed line that is one too many, Corrupt for a damaged
  // gzip file.
  void read(SlotBatch& batch, std::size_t size);

  // Lines that were skipped, and what was wrong with the first ones.
  std::int64_t malformed() const { return static_cast<std::int64_t>(malformed_); }      // of this epoch, here
  const std::vector<std::string>& first_malformed() const { return first_malformed_; }  // ten at most

 private:
  bool next_block();
  void start(ReadPosition position);
  void note_malformed(std::size_t line, const Malformed& malformed);

  LineFiles files_;
  const LineParser& parser_;
  ReadOptions options_;
  PartReader reader_;
  ReadPosition position_;  // unread.front() is the part that is open
  bool is_open_ = false;
  std::uint64_t block_ = 0;              // of the open part
  std::uint64_t to_skip_ = 0;            // lines of the open part that were read before
  std::vector<std::string_view> lines_;  // of the block, in the order in which they are read
  std::vector<std::uint32_t> order_;
  std::size_t at_ = 0;  // in order_
  std::int64_t malformed_ = 0;
  std::vector<std::string> first_malformed_;
};

}  // namespace shoal::data
