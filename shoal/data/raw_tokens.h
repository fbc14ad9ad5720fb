// SPDX-License-Identifier: Apache-2.0
// A file of token ids and nothing else, as other tools write them: little-endian, two or four bytes each. It
// is mapped: a corpus larger than memory is trained on page by page.
#pragma once

#include <cstdint>
#include <filesystem>

#include "shoal/base/file_system.h"

namespace shoal::data {

class RawTokens {
 public:
  // Reads the file once, to know that each id is below `vocab_size`. Throws InvalidInput naming the file and
  // the first id that is not, or a length that is no multiple of an id's.
  RawTokens(const std::filesystem::path& path, int bytes_of_a_token, std::int64_t vocab_size);

  std::int64_t size() const { return size_; }
  std::uint64_t key() const { return key_; }  // of the file's bytes
  // Tokens `begin` to `begin + count`, widened.
  void copy(std::int64_t begin, std::int64_t count, std::int64_t* to) const;

 private:
  MappedFile file_;
  int width_;
  std::int64_t size_;
  std::uint64_t key_ = 0;
};

}  // namespace shoal::data
