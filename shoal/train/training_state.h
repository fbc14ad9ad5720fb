// SPDX-License-Identifier: Apache-2.0
// What a resumed run needs from a Trainer to go on bit for bit. Random numbers are functions of (seed, step),
// so the counts stand for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/checkpoint/image.h"
#include "shoal/checkpoint/reader.h"
#include "shoal/checkpoint/weights.h"
#include "shoal/train/loss_scale.h"

namespace shoal {

struct TrainingState {
  std::int64_t step = 0;                          // updates made
  std::int64_t backwards = 0;                     // gradients made without an update
  std::map<std::string, std::int64_t> updates;    // of each parameter, where its optimizer counts them
  std::optional<LossScaleState> loss_scale = {};  // of float16
  std::map<std::string, at::Tensor> model;        // parameters and buffers: "fc.weight"
  std::map<std::string, at::Tensor> optimizer;    // "fc.weight.exp_avg"
};

namespace train {

// The state's tensors as a saver takes them, good until the next step. Those that do not lie row-major in
// main memory are copied to where they do, and `copies` holds them.
struct Snapshot {
  std::vector<checkpoint::TensorBytes> tensors;
  std::vector<at::Tensor> copies;
};
Snapshot snapshot_of(const TrainingState& state);

// The counts as JSON, for a manifest's state; `set_counts` throws Corrupt for another text.
std::string counts_of(const TrainingState& state);
void set_counts(TrainingState& state, const std::string& json);

// Tensors in memory of their own. Throws Corrupt.
TrainingState read_state(const checkpoint::Checkpoint& checkpoint, const std::string& counts);
at::Tensor read_tensor(const checkpoint::TensorShape& type,
                       const std::function<void(std::span<std::byte>)>& read);

// Names and types, for messages about what does not fit.
std::vector<checkpoint::TensorShape> shapes_of(const std::map<std::string, at::Tensor>& tensors);

}  // namespace train
}  // namespace shoal
