// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds, as data and as text. The text is one JSON object whose first line is the checksum
// of all the others, so that no flipped bit goes unseen, in it or, through the chunks' checksums, in the
// files it names:
//
//   {"crc32c":"8a9136aa",
//   "format":"shoal-checkpoint","version":1,"step":100,
//   "state":{…},
//   "tensors":[{"group":"model","name":"fc.weight","dtype":"f32","shape":[4,8],
//               "pieces":[{"file":"model-0.safetensors","begin":96,"offset":[0,0],"shape":[4,8]}]}, …],
//   "files":[{"name":"model-0.safetensors","bytes":224,"crc32c":["e3069283"]}, …]}
//
// Names and shapes are global: those of the tensor as one device has it. A piece is a block of it, row-major,
// wherever it lies; how many there are is the layout of the run that saved.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/dtype.h"

namespace shoal::checkpoint {

inline constexpr std::int64_t kChunkBytes = 1 << 20;  // of a file; each has a checksum

struct Piece {
  std::string file;
  std::int64_t begin = 0;            // byte in the file
  std::vector<std::int64_t> offset;  // of its first element in the whole tensor
  std::vector<std::int64_t> shape;
  friend bool operator==(const Piece&, const Piece&) = default;
};

struct Entry {
  std::string group;  // "model" or "optimizer"; a name is unique in its group
  std::string name;   // "fc.weight", "fc.weight.exp_avg"
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;
  std::vector<Piece> pieces;
  friend bool operator==(const Entry&, const Entry&) = default;
};

struct StoredFile {
  std::string name;
  std::int64_t bytes = 0;
  std::vector<std::uint32_t> chunks;  // CRC-32C of each kChunkBytes, the last one shorter
  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

struct Manifest {
  std::int64_t step = 0;
  std::string state = "{}";  // a JSON object of whoever saved: counts, seeds, recipe
  std::vector<Entry> tensors;
  std::vector<StoredFile> files;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

std::string to_text(const Manifest& manifest);
// Throws Corrupt, beginning with `place`, for any text that to_text did not make: another checksum, fields
// that are absent or of another type, a file name that leads out of the folder, pieces outside their file or
// tensor, or that do not make up the whole tensor.
Manifest from_text(std::string_view text, std::string_view place);

// Elements of a shape; -1 where a dim is negative or the number does not fit.
std::int64_t elements_of(const std::vector<std::int64_t>& shape);
std::string shape_text(const std::vector<std::int64_t>& shape);  // "[4, 8]"
std::int64_t num_chunks(std::int64_t bytes);

}  // namespace shoal::checkpoint
