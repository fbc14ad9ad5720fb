// SPDX-License-Identifier: Apache-2.0
// A checkpoint's files as one row of bytes in memory: a snapshot is one copy into it, and writing is reading
// along it.
//
//   | model-0.safetensors                        | optimizer-0.safetensors                       |
//   | header | fc.weight | fc.bias | …           | header | fc.weight.exp_avg | …                |
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/checkpoint/manifest.h"

namespace shoal::checkpoint {

// A tensor of the running program, whole and row-major. Borrows its bytes.
struct TensorBytes {
  std::string group;
  std::string name;
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

struct ImageFile {
  std::string name;
  std::string header;
  std::int64_t begin = 0;  // in the image
  std::int64_t bytes = 0;
};

struct ImagePlan {
  std::vector<ImageFile> files;      // a group each, in the order in which groups first appear
  std::vector<Entry> entries;        // as the tensors
  std::vector<std::int64_t> places;  // where in the image the bytes of each tensor go
  std::int64_t bytes = 0;
};

// Throws InvalidInput for a tensor whose bytes do not fit its shape, or a name that is twice in a group.
ImagePlan plan_image(std::span<const TensorBytes> tensors);

// Copies headers and tensors, on `threads` threads of which the caller is one.
void fill_image(const ImagePlan& plan, std::span<const TensorBytes> tensors, std::span<std::byte> image,
                int threads);

// Memory that is there before it is written to, in large pages where the system has them. Grows, never
// shrinks.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::span<std::byte> of(std::int64_t bytes);  // the same memory each time; throws Infeasible

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace shoal::checkpoint
