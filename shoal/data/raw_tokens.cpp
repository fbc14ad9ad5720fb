// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/raw_tokens.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "shoal/base/crc32c.h"
#include "shoal/base/error.h"
#include "shoal/data/hash.h"

namespace shoal::data {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

template <class Id>
static void widen(const std::byte* from, std::int64_t count, std::int64_t* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    Id id;
    std::memcpy(&id, from + i * static_cast<std::int64_t>(sizeof(Id)), sizeof(Id));
    to[i] = id;
  }
}

RawTokens::RawTokens(const std::filesystem::path& path, int bytes_of_a_token, std::int64_t vocab_size)
    : file_(path), width_(bytes_of_a_token), size_(static_cast<std::int64_t>(file_.bytes().size()) / width_) {
  SHOAL_CHECK(width_ == 2 || width_ == 4, InvalidInput, path.string(), ": tokens have 2 or 4 bytes, not ",
              width_);
  SHOAL_CHECK(size_ * width_ == static_cast<std::int64_t>(file_.bytes().size()), InvalidInput, path.string(),
              ": has ", file_.bytes().size(), " bytes, no multiple of a token's ", width_);
  constexpr std::int64_t kBlock = 1 << 16;
  std::vector<std::int64_t> block(kBlock);
  std::uint32_t crc = 0;
  for (std::int64_t begin = 0; begin < size_; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, size_ - begin);
    copy(begin, count, block.data());
    const auto bad =
        std::find_if(block.begin(), block.begin() + count, [&](std::int64_t id) { return id >= vocab_size; });
    SHOAL_CHECK(bad == block.begin() + count, InvalidInput, path.string(), ": token ",
                begin + (bad - block.begin()), " is ", *bad, ", but the vocabulary has ", vocab_size,
                "; a larger model.vocab_size, or another "
                "dataset.token_bytes than ",
                width_);
    crc = crc32c(file_.bytes().subspan(static_cast<std::size_t>(begin * width_),
                                       static_cast<std::size_t>(count * width_)),
                 crc);
  }
  key_ = mix(crc ^ mix(static_cast<std::uint64_t>(size_ * width_)));
}

void RawTokens::copy(std::int64_t begin, std::int64_t count, std::int64_t* to) const {
  const std::byte* from = file_.bytes().data() + begin * width_;
  if (width_ == 2)
    widen<std::uint16_t>(from, count, to);
  else
    widen<std::uint32_t>(from, count, to);
}

}  // namespace shoal::data
