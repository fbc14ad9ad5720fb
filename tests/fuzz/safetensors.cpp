// SPDX-License-Identifier: Apache-2.0
#include "shoal/checkpoint/safetensors.h"

#include <algorithm>

#include "shoal/base/file_system.h"
#include "tests/fuzz/fuzz.h"

namespace {

class Bytes final : public shoal::InputFile {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::int64_t bytes() const override { return static_cast<std::int64_t>(bytes_.size()); }
  void read(std::int64_t begin, std::span<std::byte> to) const override {
    SHOAL_CHECK(begin >= 0 && begin <= bytes() && static_cast<std::int64_t>(to.size()) <= bytes() - begin,
                Corrupt, "it ends before");
    std::ranges::copy(bytes_.subspan(static_cast<std::size_t>(begin), to.size()), to.begin());
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  // The length of the header, which comes first, is made right: else few would come to it.
  std::vector<std::byte> file(8 + size);
  const std::uint64_t header = size - std::min<std::size_t>(size, size > 0 ? data[0] % 16 : 0);
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(header >> (8 * i));
  std::ranges::copy(fuzz::bytes_of(data, size), file.begin() + 8);
  for (const std::span<const std::byte> each : {fuzz::bytes_of(data, size), std::span<const std::byte>(file)})
    fuzz::refused_or_done([&] { checkpoint::read_header(Bytes(each), "it"); });
  return 0;
}
