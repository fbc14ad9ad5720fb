// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/training_state.h"

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::train {

using nlohmann::json;

static std::vector<std::int64_t> shape_of(const at::Tensor& tensor) { return tensor.sizes().vec(); }

static std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

Snapshot snapshot_of(const TrainingState& state) {
  Snapshot snapshot;
  const auto add = [&](const char* group, const std::map<std::string, at::Tensor>& tensors) {
    for (const auto& [name, tensor] : tensors) {
      at::Tensor plain = tensor.detach().cpu().contiguous();
      if (!plain.is_alias_of(tensor)) snapshot.copies.push_back(plain);
      snapshot.tensors.push_back({.group = group,
                                  .name = name,
                                  .dtype = aten::from_torch(plain.scalar_type()),
                                  .shape = shape_of(plain),
                                  .bytes = bytes_of(plain)});
    }
  };
  add("model", state.model);
  add("optimizer", state.optimizer);
  return snapshot;
}

std::string counts_of(const TrainingState& state) {
  json counts = {{"step", state.step}, {"backwards", state.backwards}, {"updates", state.updates}};
  if (state.loss_scale)
    counts["loss_scale"] = {{"scale", state.loss_scale->scale}, {"updates", state.loss_scale->updates}};
  return counts.dump();
}

void set_counts(TrainingState& state, const std::string& text) {
  const json counts = json::parse(text, nullptr, false);
  const auto is_count = [](const json& value) { return value.is_number_unsigned(); };
  SHOAL_CHECK(counts.is_object() && counts.contains("step") && is_count(counts["step"]) &&
                  counts.contains("updates") && counts["updates"].is_object(),
              Corrupt, "checkpoint: the trainer's counts have no step or no updates");
  state.step = counts["step"].get<std::int64_t>();
  if (const auto backwards = counts.find("backwards"); backwards != counts.end()) {
    SHOAL_CHECK(is_count(*backwards), Corrupt, "checkpoint: the trainer's backwards are no count");
    state.backwards = backwards->get<std::int64_t>();
  }
  if (const auto scale = counts.find("loss_scale"); scale != counts.end()) {
    SHOAL_CHECK(scale->is_object() && scale->contains("scale") && (*scale)["scale"].is_number() &&
                    scale->contains("updates") && is_count((*scale)["updates"]),
                Corrupt, "checkpoint: the trainer's loss scale has no scale or no updates");
    state.loss_scale = {(*scale)["scale"].get<double>(), (*scale)["updates"].get<std::int64_t>()};
  }
  for (const auto& [name, count] : counts["updates"].items()) {
    SHOAL_CHECK(is_count(count), Corrupt, "checkpoint: the updates of ", in_quotes(name), " are no count");
    state.updates[name] = count.get<std::int64_t>();
  }
}

at::Tensor read_tensor(const checkpoint::TensorShape& type,
                       const std::function<void(std::span<std::byte>)>& read) {
  const at::Tensor tensor = at::empty(type.shape, aten::to_torch(type.dtype));
  read({static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  return tensor;
}

TrainingState read_state(const checkpoint::Checkpoint& checkpoint, const std::string& counts) {
  TrainingState state;
  set_counts(state, counts);
  for (const checkpoint::Entry& entry : checkpoint.manifest().tensors) {
    SHOAL_CHECK(entry.group == "model" || entry.group == "optimizer", Corrupt, checkpoint.folder().string(),
                ": tensor ", in_quotes(entry.name), " is of the unknown group ", in_quotes(entry.group));
    auto& tensors = entry.group == "model" ? state.model : state.optimizer;
    tensors.emplace(entry.name, read_tensor({entry.name, entry.dtype, entry.shape},
                                            [&](std::span<std::byte> to) { checkpoint.read(entry, to); }));
  }
  return state;
}

std::vector<checkpoint::TensorShape> shapes_of(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<checkpoint::TensorShape> shapes;
  for (const auto& [name, tensor] : tensors)
    shapes.push_back({name, aten::from_torch(tensor.scalar_type()), shape_of(tensor)});
  return shapes;
}

}  // namespace shoal::train
