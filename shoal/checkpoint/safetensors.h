// SPDX-License-Identifier: Apache-2.0
// The safetensors format: eight bytes with the length of a JSON header, the header, and the tensors' bytes in
// a row. https://github.com/huggingface/safetensors#format. Nothing in it is ever executed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/dtype.h"
#include "shoal/base/file_system.h"

namespace shoal::checkpoint {

struct StoredTensor {
  std::string name;
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // byte in the file
  std::int64_t bytes = 0;
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "format": "pt" is what Hugging Face writes
  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;
};

// All that stands before the tensors' bytes. Sets `begin` and `bytes` of each tensor; the order stays. Throws
// InvalidInput for a dtype that the format does not have and for a name that is there twice.
std::string make_header(SafetensorsHeader& header);

// Throws Corrupt naming `place` for a file that is cut off, whose tensors overlap, leave gaps or do not fit
// their shapes, or that is none of this format.
SafetensorsHeader read_header(const InputFile& file, std::string_view place);

}  // namespace shoal::checkpoint
