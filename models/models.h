// SPDX-License-Identifier: Apache-2.0
// The models there are, by name, and the sizes that papers gave them.
#pragma once

#include <torch/nn.h>

#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "models/bert.h"
#include "models/dcn.h"
#include "models/deepfm.h"
#include "models/dlrm.h"
#include "models/gpt2.h"
#include "models/llama.h"
#include "models/lstm.h"
#include "models/mlp.h"
#include "models/resnet.h"
#include "models/t5.h"
#include "models/vit.h"
#include "models/wide_deep.h"
#include "models/word2vec.h"

namespace models {

using Config =
    std::variant<BertConfig, DcnConfig, DeepFmConfig, DlrmConfig, Gpt2Config, LlamaConfig, LstmConfig,
                 MlpConfig, ResnetConfig, T5Config, VitConfig, WideDeepConfig, Word2VecConfig>;

struct Flavor {
  std::string_view model;   // "gpt2"
  std::string_view flavor;  // "124M"; "" is the one taken when none is named
  Config config;
};

std::span<const Flavor> flavors();  // every model has at least one, all of a model in a row
std::optional<Config> find(std::string_view model,
                           std::string_view flavor);  // nullopt: there is none of that name

// The module, in training mode. Its `forward` takes one tensor, of t5 and those with ids two, and returns one. Draws
// from torch's default generator.
torch::nn::AnyModule make(const Config& config);

}  // namespace models
