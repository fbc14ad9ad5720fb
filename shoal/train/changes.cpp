// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/changes.h"

#include <algorithm>

#include "shoal/aten/memory.h"
#include "shoal/base/text.h"
#include "shoal/train/agreement.h"

namespace shoal::train {

// Tensors of inference mode do not count how often they are written.
static bool counts_writes(const at::Tensor& tensor) { return tensor.defined() && !tensor.is_inference(); }

static std::int64_t digest_of(const at::Tensor& tensor) {
  constexpr std::int64_t kMost = 256;  // elements
  const at::Tensor flat = tensor.detach().reshape(-1);
  const std::int64_t step = std::max<std::int64_t>(1, flat.numel() / kMost);
  const at::Tensor some = flat.slice(0, 0, flat.numel(), step).contiguous().cpu();
  return hash_of({static_cast<const char*>(some.const_data_ptr()), some.nbytes()});
}

void Changes::note(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors)
    if (counts_writes(tensor)) versions_[tensor.unsafeGetTensorImpl()] = tensor._version();
}

std::string Changes::text(const char* kind, const NamedTensors& tensors) const {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    if (!counts_writes(tensor) || !aten::has_memory(tensor)) continue;
    const auto noted = versions_.find(tensor.unsafeGetTensorImpl());
    if (noted != versions_.end() && noted->second == tensor._version()) continue;
    text += concat("\nchanged between calls: ", kind, ' ', name, ", digest ", digest_of(tensor));
  }
  return text;
}

}  // namespace shoal::train
