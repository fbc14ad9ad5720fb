// SPDX-License-Identifier: Apache-2.0
// shoal generate with sample.inputs_file: the logits that a model gives for the tensors of a safetensors
// file, named as in the batches of its dataset: "inputs", and of t5 "decoder_inputs", of dlrm "categories".
#include <torch/utils.h>

#include <map>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/checkpoint/image.h"
#include "shoal/checkpoint/safetensors.h"
#include "shoal/checkpoint/weights.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/sample.h"
#include "shoal/observe/file.h"
#include "shoal/train/training_state.h"

namespace shoal::cli {

void write_tensors(std::map<std::string, at::Tensor> tensors, const std::string& path) {
  TrainingState state;
  state.model = std::move(tensors);
  const train::Snapshot snapshot = train::snapshot_of(state);
  const checkpoint::ImagePlan plan = checkpoint::plan_image(snapshot.tensors);
  std::string image(static_cast<std::size_t>(plan.files[0].bytes), '\0');
  checkpoint::fill_image(plan, snapshot.tensors, std::as_writable_bytes(std::span(image)), 1);
  observe::write_file(path, image);
}

int forward(const Recipe& recipe) {
  SHOAL_CHECK(!recipe.sample.logits_file.empty(), InvalidInput,
              "sample.inputs_file is given and sample.logits_file is not: name where the logits go");
  DiskFileSystem files;
  torch::nn::AnyModule model = trained_model(files, recipe);
  const checkpoint::Weights inputs(files, recipe.sample.inputs_file);
  Batch::Map batch;
  for (std::size_t i = 0; i < inputs.tensors().size(); ++i)
    batch.emplace(
        inputs.tensors()[i].name,
        train::read_tensor(inputs.tensors()[i], [&](std::span<std::byte> to) { inputs.read(i, to); }));
  SHOAL_CHECK(batch.contains("inputs"), InvalidInput, recipe.sample.inputs_file,
              ": holds no tensor named inputs");
  const torch::NoGradGuard no_grad;
  model.ptr()->eval();
  write_tensors({{"logits", logits_of(model, Batch(std::move(batch)))}}, recipe.sample.logits_file);
  return 0;
}

}  // namespace shoal::cli
