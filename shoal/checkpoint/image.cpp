// SPDX-License-Identifier: Apache-2.0
#include "shoal/checkpoint/image.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/checkpoint/safetensors.h"

namespace shoal::checkpoint {

static constexpr std::int64_t kAlignment = 64;  // of a file in the image

ImagePlan plan_image(std::span<const TensorBytes> tensors) {
  ImagePlan plan;
  plan.entries.resize(tensors.size());
  plan.places.resize(tensors.size());
  std::vector<std::string> groups;
  for (const TensorBytes& tensor : tensors)
    if (std::ranges::find(groups, tensor.group) == groups.end()) groups.push_back(tensor.group);
  for (const std::string& group : groups) {
    SafetensorsHeader header;
    header.metadata.emplace("format", "pt");
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].group != group) continue;
      members.push_back(i);
      header.tensors.push_back(
          {.name = tensors[i].name, .dtype = tensors[i].dtype, .shape = tensors[i].shape});
    }
    ImageFile file = {.name = group + "-0.safetensors", .header = make_header(header), .begin = plan.bytes};
    file.bytes = static_cast<std::int64_t>(file.header.size());
    for (std::size_t member = 0; member < members.size(); ++member) {
      const TensorBytes& tensor = tensors[members[member]];
      const StoredTensor& stored = header.tensors[member];
      SHOAL_CHECK(stored.bytes == static_cast<std::int64_t>(tensor.bytes.size()), InvalidInput,
                  "checkpoint: tensor ", in_quotes(tensor.name), " of shape ", shape_text(tensor.shape),
                  " has ", tensor.bytes.size(), " bytes, not ", stored.bytes);
      plan.entries[members[member]] = {
          .group = group,
          .name = tensor.name,
          .dtype = tensor.dtype,
          .shape = tensor.shape,
          .pieces = {{.file = file.name,
                      .begin = stored.begin,
                      .offset = std::vector<std::int64_t>(tensor.shape.size(), 0),
                      .shape = tensor.shape}}};
      plan.places[members[member]] = plan.bytes + stored.begin;
      file.bytes += stored.bytes;
    }
    plan.bytes = (plan.bytes + file.bytes + kAlignment - 1) / kAlignment * kAlignment;
    plan.files.push_back(std::move(file));
  }
  return plan;
}

void fill_image(const ImagePlan& plan, std::span<const TensorBytes> tensors, std::span<std::byte> image,
                int threads) {
  for (const ImageFile& file : plan.files)
    std::memcpy(image.data() + file.begin, file.header.data(), file.header.size());
  std::size_t total = 0;
  for (const TensorBytes& tensor : tensors) total += tensor.bytes.size();
  const auto copy_share = [&](std::size_t begin,
                              std::size_t end) {  // bytes begin to end of all tensors in a row
    std::size_t at = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t size = tensors[i].bytes.size();
      const std::size_t from = std::clamp(begin, at, at + size) - at;
      const std::size_t to = std::clamp(end, at, at + size) - at;
      if (from < to)
        std::memcpy(image.data() + static_cast<std::size_t>(plan.places[i]) + from,
                    tensors[i].bytes.data() + from, to - from);
      at += size;
    }
  };
  constexpr std::size_t kWorthAThread = 1 << 20;
  const auto shares =
      std::clamp<std::size_t>(total / kWorthAThread, 1, static_cast<std::size_t>(std::max(threads, 1)));
  std::vector<std::jthread> others;
  for (std::size_t share = 1; share < shares; ++share)
    others.emplace_back(copy_share, total * share / shares, total * (share + 1) / shares);
  copy_share(0, total / shares);
}

Staging::~Staging() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

std::span<std::byte> Staging::of(std::int64_t wanted) {
  const auto bytes = static_cast<std::size_t>(wanted);
  if (bytes > bytes_) {
    constexpr std::size_t kHugePage = 2 << 20;
    const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* memory = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SHOAL_CHECK(memory != MAP_FAILED, Infeasible, "checkpoint: there is no memory for a snapshot of ",
                human_bytes(wanted), "; a run needs its model and optimizer state twice to save them");
    ::madvise(memory, rounded, MADV_HUGEPAGE);
    ::madvise(memory, rounded, MADV_POPULATE_WRITE);  // otherwise the first snapshot pays for the pages
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
    memory_ = static_cast<std::byte*>(memory);
    bytes_ = rounded;
  }
  return {memory_, bytes};
}

}  // namespace shoal::checkpoint
