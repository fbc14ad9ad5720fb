// SPDX-License-Identifier: Apache-2.0
// Weights from elsewhere into a module. Files of Hugging Face may name the model without its head, hold masks
// that are made anew, and the output projection beside the embedding that it is tied to.
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <optional>

#include "shoal/base/error.h"
#include "shoal/checkpoint/weights.h"
#include "shoal/cli/hugging_face.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/train/training_state.h"

namespace shoal::cli {

using checkpoint::TensorShape;
using checkpoint::Weights;
namespace fs = std::filesystem;

static constexpr std::string_view kHead = "lm_head.weight";

static std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace(item.key(), item.value().detach());
  for (const auto& item : module.named_buffers()) tensors.emplace(item.key(), item.value().detach());
  return tensors;
}

// "transformer." where the module has it before all names and the file before none.
static std::string missing_prefix(const std::map<std::string, at::Tensor>& wanted,
                                  const std::vector<TensorShape>& found) {
  if (wanted.empty()) return "";
  const std::string& first = wanted.begin()->first;
  const std::string prefix = first.substr(0, first.find('.') + 1);
  const bool all =
      std::ranges::all_of(wanted, [&](const auto& item) { return item.first.starts_with(prefix); });
  const bool none =
      std::ranges::none_of(found, [&](const TensorShape& each) { return each.name.starts_with(prefix); });
  return all && none ? prefix : "";
}

static bool is_mask(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

static at::Tensor read(const Weights& weights, std::size_t index) {
  return train::read_tensor(weights.tensors()[index],
                            [&](std::span<std::byte> to) { weights.read(index, to); });
}

void load_weights(FileSystem& files, const fs::path& path, const Recipe& recipe, torch::nn::Module& module) {
  check_config_json(files, path, recipe);
  const Weights weights(files, path);
  auto wanted = tensors_of(module);
  const std::string prefix = missing_prefix(wanted, weights.tensors());
  std::vector<TensorShape> found;
  std::vector<std::size_t> indices;
  std::optional<std::size_t> head;
  for (std::size_t i = 0; i < weights.tensors().size(); ++i) {
    TensorShape tensor = weights.tensors()[i];
    const bool is_head = tensor.name == kHead && !wanted.contains(tensor.name);
    if (is_head) head = i;
    tensor.name = prefix + tensor.name;
    if (is_head || (is_mask(tensor.name) && !wanted.contains(tensor.name))) continue;
    found.push_back(std::move(tensor));
    indices.push_back(i);
  }
  checkpoint::check_fits(train::shapes_of(wanted), found, checkpoint::Types::MayDiffer, path.string());
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < found.size(); ++i) {
    at::Tensor& target = wanted.at(found[i].name);
    const at::Tensor tensor = read(weights, indices[i]);
    SHOAL_CHECK(tensor.is_floating_point() == target.is_floating_point(), InvalidInput, path.string(), ": ",
                found[i].name, " is ", name_of(found[i].dtype), ", wanted ",
                name_of(train::shapes_of({{found[i].name, target}})[0].dtype));
    target.copy_(tensor);
  }
  if (!head) return;
  const at::Tensor projection = read(weights, *head);
  const bool is_tied = std::ranges::any_of(wanted, [&](const auto& item) {
    return item.second.sizes() == projection.sizes() &&
           at::equal(item.second, projection.to(item.second.scalar_type()));
  });
  SHOAL_CHECK(is_tied, InvalidInput, path.string(), ": ", kHead,
              " is not the embedding's: this model ties the two, so its logits would be others");
}

}  // namespace shoal::cli
