// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/save.h"

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/save_format.h"

namespace shoal::ps {

static constexpr std::size_t kMostWaiting = 64 << 20;  // bytes that the disk is behind

// Chunks, summed and written by a thread.
class Saving::File {
 public:
  File(FileSystem& files, const std::filesystem::path& path, const Header& header)
      : file_(files.create(path)), thread_([this] { run(); }) {
    put(to_bytes(header));
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (thread_.joinable()) {
      end();
      thread_.join();
    }
  }

  void chunk(const ChunkHead& head, std::span<const std::byte> payload) {
    const auto begin = bytes_of(head);
    std::vector<std::byte> bytes;
    bytes.reserve(begin.size() + payload.size() + sizeof(std::uint32_t));
    bytes.insert(bytes.end(), begin.begin(), begin.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    bytes.resize(bytes.size() + sizeof(std::uint32_t));  // of its sum
    put(std::move(bytes));
  }
  void end() {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  bool is_behind() const {
    const std::scoped_lock lock(mutex_);
    return waiting_bytes_ > kMostWaiting;
  }
  void wait_for_room() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_bytes_ <= kMostWaiting; });
  }
  bool is_done() const {
    const std::scoped_lock lock(mutex_);
    return is_done_;
  }
  // Bytes of the file. Throws what became of it.
  std::int64_t wait() {
    if (thread_.joinable()) thread_.join();
    if (failure_) std::rethrow_exception(failure_);
    return bytes_;
  }

 private:
  void put(std::vector<std::byte> bytes) {
    const std::scoped_lock lock(mutex_);
    waiting_bytes_ += bytes.size();
    waiting_.push_back(std::move(bytes));
    changed_.notify_all();
  }
  std::optional<std::vector<std::byte>> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !waiting_.empty() || ends_; });
    if (waiting_.empty()) return std::nullopt;
    auto bytes = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= bytes.size();
    changed_.notify_all();
    return bytes;
  }
  void run() {
    bool is_header = true;
    while (auto bytes = next()) try {
        if (failure_) continue;
        if (!is_header) {
          const auto summed = std::span(*bytes).first(bytes->size() - sizeof(std::uint32_t));
          const std::uint32_t crc = crc32c(summed);
          std::memcpy(bytes->data() + summed.size(), &crc, sizeof crc);
        }
        is_header = false;
        file_->write(*bytes);
        bytes_ += static_cast<std::int64_t>(bytes->size());
      } catch (const std::exception&) {
        failure_ = std::current_exception();
      }
    if (!failure_) try {
        file_->sync();
      } catch (const std::exception&) {
        failure_ = std::current_exception();
      }
    file_.reset();
    const std::scoped_lock lock(mutex_);
    is_done_ = true;
  }

  mutable std::mutex mutex_;  // guards the next five
  std::condition_variable changed_;
  std::deque<std::vector<std::byte>> waiting_;
  std::size_t waiting_bytes_ = 0;
  bool ends_ = false, is_done_ = false;
  // Of the thread, until it is done.
  std::unique_ptr<OutputFile> file_;
  std::int64_t bytes_ = 0;
  std::exception_ptr failure_;
  std::thread thread_;
};

static void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

static void append_row(std::vector<std::byte>& to, const Row& row, bool scored, bool with_state) {
  append(to, std::as_bytes(std::span(&row.key, 1)));
  if (scored) append(to, std::as_bytes(std::span(&row.usage, 1)));
  for (std::size_t i = 0; i < row.content.size(); ++i)
    if (with_state || i % 2 == 0) append(to, row.content[i]);
}

static Header header_of(const Table& table, const SaveOptions& options) {
  const Definition& definition = table.definition();
  const std::string where = concat("ps: table ", in_quotes(definition.name), ": ");
  SHOAL_CHECK(options.part < options.parts, InvalidInput, where, "part ", options.part, " of ", options.parts,
              " of a save: parts count from 0");
  Header header = {.kind = options.kind,
                   .origin = options.origin,
                   .part = options.part,
                   .parts = options.parts,
                   .day = table.day(),
                   .definition = to_text(definition)};
  switch (options.kind) {
    case SaveKind::Full:
      SHOAL_CHECK(options.origin != 0, InvalidInput, where, "a full save wants an origin other than 0");
      break;
    case SaveKind::Delta:
      SHOAL_CHECK(table.saved().origin != 0, InvalidInput, where,
                  "there is no full save that a delta could be one of; save it in full first");
      SHOAL_CHECK(options.number == 0 ||
                      (options.origin == table.saved().origin && options.number == table.saved().number + 1),
                  InvalidInput, where, "delta ", options.number, " of save ", options.origin,
                  " is asked for, and it is as of delta ", table.saved().number, " of save ",
                  table.saved().origin, "; save it in full");
      header.origin = table.saved().origin;
      header.number = table.saved().number + 1;
      header.shrinks = table.shrinks_since_save();
      break;
    case SaveKind::Base:
      SHOAL_CHECK(definition.scored || options.min_score == 0, InvalidInput, where,
                  "a base by score wants scored = true in the definition");
      break;
  }
  return header;
}

std::filesystem::path file_of(const std::filesystem::path& path, std::uint32_t part) {
  return path.parent_path() / concat(path.filename().string(), ".", part);
}

std::vector<std::filesystem::path> files_of(FileSystem& files, const std::filesystem::path& path) {
  std::vector<std::filesystem::path> all;
  const std::string begin = path.filename().string() + ".";
  for (const std::string& name : files.list(path.parent_path().empty() ? "." : path.parent_path()))
    if (name.size() > begin.size() && name.starts_with(begin) &&
        name.find_first_not_of("0123456789", begin.size()) == std::string::npos)
      all.push_back(path.parent_path() / name);
  SHOAL_CHECK(!all.empty(), InvalidInput, "ps: there are no files ", path.string(),
              ".0, .1, …: nothing was saved there");
  return all;
}

std::optional<std::string> followed_by(FileSystem& files, const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kFollows;
  if (!files.exists(file)) return std::nullopt;
  std::string name = read_text(files, file);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  SHOAL_CHECK(!name.empty() && name.size() < 256 && std::filesystem::path(name).filename() == name, Corrupt,
              "ps: ", file.string(), ": ", in_quotes(name), " is no name of a folder beside it");
  return name;
}

std::vector<std::filesystem::path> saves_up_to(FileSystem& files, const std::filesystem::path& path) {
  constexpr std::size_t kMost = 1 << 16;  // or they go round
  std::vector<std::filesystem::path> all = {path};
  while (const auto before = followed_by(files, all.back().parent_path())) {
    const std::filesystem::path folder = std::filesystem::absolute(all.back()).parent_path();
    all.push_back(folder.parent_path() / *before / path.filename());
    SHOAL_CHECK(all.size() < kMost, Corrupt, "ps: ", path.string(), ": saves follow each other in a circle");
  }
  std::ranges::reverse(all);
  return all;
}

Saving::Saving(Table& table, FileSystem& files, const std::filesystem::path& path, const SaveOptions& options)
    : table_(table),
      scored_(table.definition().scored),
      with_state_(options.kind != SaveKind::Base),
      file_(std::make_unique<File>(files, path, header_of(table, options))) {
  const Header header = header_of(table, options);
  const std::uint32_t shards = table.definition().shards;
  if (!with_state_) {
    for (std::uint32_t shard = 0; shard < shards; ++shard)
      table.for_each_row(shard, [&](const Row& row) { add(row, options.min_score); });
    end_file();
    return;
  }
  for (std::uint32_t shard = 0; shard < shards && options.kind == SaveKind::Delta; ++shard) {
    const auto keys = table.removed(shard);
    if (keys.empty()) continue;
    file_->chunk({.what = ChunkKind::Removed,
                  .count = static_cast<std::uint32_t>(keys.size()),
                  .bytes = static_cast<std::uint32_t>(keys.size_bytes())},
                 std::as_bytes(keys));
    report_.removed += static_cast<std::int64_t>(keys.size());
  }
  table.begin_save({.origin = header.origin, .number = header.number}, options.kind == SaveKind::Delta,
                   [this](const Row& row) { add(row, 0); });
}

Saving::~Saving() {
  if (!is_finished_ && with_state_) table_.end_save(false);
}

void Saving::add(const Row& row, float min_score) {
  if (!with_state_ && scored_ && table_.score(row.usage) < min_score) return;
  Pending& rows = pending_[row.parts];
  append_row(rows.bytes, row, scored_, with_state_);
  ++rows.rows;
  ++report_.rows;
  if (rows.bytes.size() >= kChunkBytes) flush(row.parts, rows);
}

void Saving::flush(std::uint32_t parts, Pending& rows) {
  if (rows.rows > 0)
    file_->chunk({.what = ChunkKind::Rows,
                  .parts = parts,
                  .count = rows.rows,
                  .bytes = static_cast<std::uint32_t>(rows.bytes.size())},
                 rows.bytes);
  rows.bytes.clear();
  rows.rows = 0;
}

void Saving::end_file() {
  for (auto& [parts, rows] : pending_) flush(parts, rows);
  const std::array<std::int64_t, 2> totals = {report_.rows, report_.removed};
  file_->chunk({.what = ChunkKind::End, .bytes = sizeof totals}, std::as_bytes(std::span(totals)));
  file_->end();
  has_all_ = true;
}

bool Saving::advance(std::size_t rows) {
  if (!has_all_ && !file_->is_behind() && table_.advance_save(rows)) end_file();
  return has_all_;
}

bool Saving::is_written() const { return has_all_ && file_->is_done(); }

SaveReport Saving::finish() {
  while (!advance(kChunkBytes)) file_->wait_for_room();
  report_.bytes = file_->wait();
  is_finished_ = true;
  if (with_state_) table_.end_save(true);
  return report_;
}

SaveReport save(Table& table, FileSystem& files, const std::filesystem::path& path,
                const SaveOptions& options) {
  return Saving(table, files, path, options).finish();
}

}  // namespace shoal::ps
