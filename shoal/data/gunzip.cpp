// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/gunzip.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::data {

struct Gunzip::Stream {
  z_stream z = {};
};

Gunzip::Gunzip(const InputFile& file, std::string name)
    : file_(file), name_(std::move(name)), input_(1 << 18), stream_(std::make_unique<Stream>()) {
  constexpr int kGzip = 16 + MAX_WBITS;  // with gzip's header and checksum
  SHOAL_CHECK(inflateInit2(&stream_->z, kGzip) == Z_OK, Infeasible, name_, ": no memory to inflate it");
}

Gunzip::~Gunzip() { inflateEnd(&stream_->z); }

bool Gunzip::fill() {
  const auto count = std::min(file_.bytes() - at_, static_cast<std::int64_t>(input_.size()));
  if (count == 0) return false;
  file_.read(at_, std::span(input_).first(static_cast<std::size_t>(count)));
  at_ += count;
  stream_->z.next_in = reinterpret_cast<Bytef*>(input_.data());
  stream_->z.avail_in = static_cast<uInt>(count);
  return true;
}

std::size_t Gunzip::read(std::span<char> to) {
  z_stream& z = stream_->z;
  constexpr std::size_t kMost = 1 << 30;  // that zlib's counters hold
  const std::size_t wanted = std::min(to.size(), kMost);
  z.next_out = reinterpret_cast<Bytef*>(to.data());
  z.avail_out = static_cast<uInt>(wanted);
  while (z.avail_out > 0) {
    if (z.avail_in == 0 && !fill()) {
      SHOAL_CHECK(!is_inside_, Corrupt, name_, ": the gzip file ends too early, after ", file_.bytes(),
                  " bytes; copy or download it again");
      break;
    }
    is_inside_ = true;
    const int result = inflate(&z, Z_NO_FLUSH);
    SHOAL_CHECK(result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR, Corrupt, name_,
                ": no gzip file, or a damaged one (", z.msg == nullptr ? "?" : z.msg,
                "); copy or download it again");
    if (result == Z_STREAM_END) {
      is_inside_ = false;
      inflateReset(&z);
    }
  }
  return wanted - z.avail_out;
}

}  // namespace shoal::data
