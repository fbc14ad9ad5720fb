// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/line_files.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/data/hash.h"

namespace shoal::data {

static void read_chars(const InputFile& file, std::int64_t begin, std::span<char> to) {
  file.read(begin, std::as_writable_bytes(to));
}

LineFiles::LineFiles(FileSystem& file_system, std::vector<std::filesystem::path> all,
                     std::int64_t bytes_of_a_part)
    : files(&file_system), paths(std::move(all)), part_bytes(bytes_of_a_part) {
  SHOAL_CHECK(!paths.empty(), InvalidInput, "there are no files to read samples from");
  SHOAL_CHECK(part_bytes > 0, InvalidInput, "a part of a file has ", part_bytes, " bytes, not 1 or more");
  key = mix(static_cast<std::uint64_t>(part_bytes));
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const auto file = files->open(paths[i]);
    const std::int64_t bytes = file->bytes();
    key = mix(key ^ hash_bytes(paths[i].filename().string()) ^ mix(static_cast<std::uint64_t>(bytes)));
    std::array<char, 2> magic = {};
    if (bytes >= 2) read_chars(*file, 0, magic);
    if (magic == std::array{'\x1f', '\x8b'}) {
      parts.push_back({.file = i, .begin = 0, .end = bytes, .is_gzip = true});
      continue;
    }
    for (std::int64_t begin = 0; begin < bytes; begin += part_bytes)
      parts.push_back({.file = i, .begin = begin, .end = std::min(bytes, begin + part_bytes)});
  }
}

void PartReader::open(std::size_t part) {
  part_ = files_.parts.at(part);
  gunzip_.reset();  // it borrows the file
  file_ = files_.files->open(files_.paths[part_.file]);
  if (part_.is_gzip) gunzip_ = std::make_unique<Gunzip>(*file_, files_.paths[part_.file].string());
  begin_ = end_ = filled_ = num_lines_ = 0;
  lines_before_ = first_byte_ = 0;
  is_over_ = false;
}

void PartReader::must_end(bool does) const {
  SHOAL_CHECK(does, InvalidInput, files_.paths[part_.file].string(), ": has a line of more than ",
              kLongestLine, " bytes; is it text, one sample a line?");
}

// The lines that begin in [begin, end): from behind the first end of a line at begin - 1 or later, up to the
// first one at end - 1 or later.
bool PartReader::next_of_plain() {
  if (std::exchange(is_over_, true)) return false;
  const std::int64_t from = std::max<std::int64_t>(0, part_.begin - 1);
  filled_ = static_cast<std::size_t>(part_.end - from);
  text_.resize(filled_);
  read_chars(*file_, from, text_);
  begin_ = 0;
  if (part_.begin > 0) {
    const void* newline = std::memchr(text_.data(), '\n', filled_);
    if (newline == nullptr) return false;  // all of it belongs to a line that begins before
    begin_ = static_cast<std::size_t>(static_cast<const char*>(newline) - text_.data()) + 1;
    if (begin_ == filled_) return false;
  }
  first_byte_ = from + static_cast<std::int64_t>(begin_);
  end_ = filled_;
  std::size_t searched = filled_ - 1;
  for (std::int64_t at = part_.end;;) {
    const void* newline = std::memchr(text_.data() + searched, '\n', filled_ - searched);
    if (newline != nullptr) {
      end_ = static_cast<std::size_t>(static_cast<const char*>(newline) - text_.data()) + 1;
      return true;
    }
    end_ = searched = filled_;
    if (at == file_->bytes()) return true;
    must_end(filled_ - static_cast<std::size_t>(part_.end - from) < kLongestLine);
    const std::int64_t more = std::min<std::int64_t>(file_->bytes() - at, 1 << 14);
    text_.resize(filled_ + static_cast<std::size_t>(more));
    read_chars(*file_, at, std::span(text_).subspan(filled_));
    filled_ += static_cast<std::size_t>(more);
    at += more;
  }
}

bool PartReader::next_of_gzip() {
  lines_before_ += static_cast<std::int64_t>(num_lines_);
  std::copy(text_.begin() + static_cast<std::ptrdiff_t>(end_),
            text_.begin() + static_cast<std::ptrdiff_t>(filled_), text_.begin());
  filled_ -= end_;
  begin_ = 0;
  const auto wanted = static_cast<std::size_t>(files_.part_bytes);
  for (std::size_t searched = 0;;) {
    if (!is_over_) {
      text_.resize(filled_ + wanted);
      const std::size_t count = gunzip_->read(std::span(text_).subspan(filled_, wanted));
      is_over_ = count < wanted;
      filled_ += count;
    }
    if (is_over_) {
      end_ = filled_;
      return end_ > 0;
    }
    for (end_ = filled_; end_ > searched && text_[end_ - 1] != '\n';) --end_;
    if (end_ > searched) return true;
    searched = filled_;
    must_end(filled_ < kLongestLine + wanted);
  }
}

bool PartReader::next(std::vector<std::string_view>& lines) {
  lines.clear();
  const bool has_block = part_.is_gzip ? next_of_gzip() : next_of_plain();
  if (has_block) {
    const char* at = text_.data() + begin_;
    const char* const end = text_.data() + end_;
    while (at != end) {
      const void* newline = std::memchr(at, '\n', static_cast<std::size_t>(end - at));
      const char* const stop = newline == nullptr ? end : static_cast<const char*>(newline);
      const bool has_return = stop != at && stop[-1] == '\r';
      lines.emplace_back(at, static_cast<std::size_t>(stop - at) - has_return);
      at = stop == end ? end : stop + 1;
    }
  }
  num_lines_ = lines.size();
  return has_block;
}

std::string PartReader::place_of(std::size_t line) const {
  std::int64_t number = lines_before_ + static_cast<std::int64_t>(line) + 1;
  std::vector<char> block(1 << 20);
  for (std::int64_t at = 0; at < first_byte_;) {
    const auto count = std::min(first_byte_ - at, static_cast<std::int64_t>(block.size()));
    read_chars(*file_, at, std::span(block).first(static_cast<std::size_t>(count)));
    number += std::count(block.begin(), block.begin() + count, '\n');
    at += count;
  }
  return concat(files_.paths[part_.file].string(), ":", number);
}

}  // namespace shoal::data
