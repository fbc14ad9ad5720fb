// SPDX-License-Identifier: Apache-2.0
// Tables in files. All little-endian, every byte under a CRC-32C:
//
//   header  "shoalps2" kind number | origin | part parts | day, shrinks since the save before |
//           length of the text, 0 | definition as text | CRC
//   chunk   what, parts of its rows | rows, bytes | rows or keys | CRC           … as many as there are
//   chunk   end, 0 | 0, 16 | numbers of rows and of removed keys | CRC
//   row     key | shows, clicks, day (of a scored table) | of each part values, state (not in a base)
//
// A full save has an origin, a number that tells it from other ones; deltas of it are numbered from 1. A save
// of several servers is a file of each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/file_system.h"
#include "shoal/ps/table.h"

namespace shoal::ps {

enum class SaveKind : std::uint8_t {
  Full,
  Delta,  // rows that changed and keys that went since the save before
  Base,   // values alone, of rows with at least `min_score`: for serving
};

struct SaveOptions {               // of one file
  SaveKind kind = SaveKind::Full;  // what is in it
  std::uint64_t origin = 0;        // of a full save: not 0, the same for all servers, and new
  std::uint32_t number = 0;  // of a delta after the save of that origin, from 1; 0: the next one of whichever
  std::uint32_t part = 0, parts = 1;  // which of the servers' files
  float min_score = 0;                // of a base
};

// Of a save that is to be this one.
inline SaveOptions options_of(const Saved& as) {
  return {
      .kind = as.number == 0 ? SaveKind::Full : SaveKind::Delta, .origin = as.origin, .number = as.number};
}

// How far a save has come, or what a load has read.
struct SaveReport {
  std::int64_t rows = 0, removed = 0, bytes = 0;    // rows, removed keys, bytes of the files
  SaveReport& operator+=(const SaveReport& more) {  // of another file
    rows += more.rows;
    removed += more.removed;
    bytes += more.bytes;
    return *this;
  }
  friend bool operator==(const SaveReport&, const SaveReport&) = default;
};

// A save that goes on while its table changes, of the rows as they are when it is made; those of a base are visited
// there and then. A thread of its own writes and syncs the file; the folder and a rename are the caller's. One of a
// table at a time, which outlives it. If it fails, or goes before finish(), the next delta has all that this one would
// have had.
class Saving {
 public:
  // Throws InvalidInput for a delta with nothing to be one of, a full save without an origin, and scores of a table
  // that has none; Infeasible where there can be no file.
  Saving(Table& table, FileSystem& files, const std::filesystem::path& path, const SaveOptions& options);
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;
  ~Saving();

  // Of the table's thread. So many rows more are on their way, or none where the disk is far behind; whether all are.
  bool advance(std::size_t rows);
  bool is_written() const;  // all of it; or it has failed
  SaveReport finish();      // waits; throws Infeasible where the disk took no more

 private:
  class File;
  struct Pending {  // rows that are to become a chunk: they have the same parts
    std::vector<std::byte> bytes;
    std::uint32_t rows = 0;
  };
  void add(const Row& row, float min_score);
  void flush(std::uint32_t parts, Pending& rows);
  void end_file();

  Table& table_;
  const bool scored_, with_state_;
  const std::unique_ptr<File> file_;
  std::map<std::uint32_t, Pending> pending_;  // by parts
  SaveReport report_;
  bool has_all_ = false, is_finished_ = false;
};

// The same, of a table that does not change meanwhile.
SaveReport save(Table& table, FileSystem& files, const std::filesystem::path& path,
                const SaveOptions& options);

// Whether a key's row is to be loaded.
using Keeps = std::function<bool(std::uint64_t key)>;

// Reads a save, given all its files in any order, into a table of the same definition: a full or a base into
// an empty one, a delta where the save before it is the last that was loaded or saved. Of other servers'
// rows, takes those that it keeps; all where that is empty. All files are looked through before the table is
// changed: throws Corrupt for a damaged one, InvalidInput for one that does not belong here, and has changed
// nothing then.
SaveReport load(Table& table, FileSystem& files, std::span<const std::filesystem::path> paths,
                const Keeps& keeps = {});

// The files of a save of several servers: PATH.0, PATH.1, …
std::filesystem::path file_of(const std::filesystem::path& path, std::uint32_t part);
// Those that there are. Throws InvalidInput where there are none.
std::vector<std::filesystem::path> files_of(FileSystem& files, const std::filesystem::path& path);

// Where saves are each in a folder of its own, one beside the other, a folder of deltas has a file that names the one
// of the saves before them. Throws Corrupt where that is no name.
inline constexpr std::string_view kFollows = "follows";
std::optional<std::string> followed_by(FileSystem& files, const std::filesystem::path& folder);
// What load() wants one after the other to come to the save of that path: a full one, then deltas, the path itself last.
// Throws InvalidInput for one that is not there.
std::vector<std::filesystem::path> saves_up_to(FileSystem& files, const std::filesystem::path& path);

}  // namespace shoal::ps
