// SPDX-License-Identifier: Apache-2.0
// The bytes of a gzip file, from first to last; also of several that were put one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/file_system.h"

namespace shoal::data {

class Gunzip {
 public:
  // `name` is for messages. The file is borrowed.
  Gunzip(const InputFile& file, std::string name);
  ~Gunzip();
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  // How many bytes were read: fewer than asked for only at the end. Throws Corrupt naming the file where it
  // is damaged or cut short.
  std::size_t read(std::span<char> to);

 private:
  struct Stream;
  bool fill();  // false at the file's end

  const InputFile& file_;
  std::string name_;
  std::int64_t at_ = 0;
  std::vector<std::byte> input_;
  std::unique_ptr<Stream> stream_;
  bool is_inside_ = false;  // of a member
};

}  // namespace shoal::data
