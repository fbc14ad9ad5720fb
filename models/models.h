// SPDX-License-Identifier: Apache-2.0
// The models there are.
#pragma once

#include <torch/nn.h>

#include "models/bert.h"
#include "models/configs.h"
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

// The module, in training mode. Its `forward` takes one tensor, of t5 and those with ids two, and returns one. Draws
// from torch's default generator.
torch::nn::AnyModule make(const Config& config);

}  // namespace models
