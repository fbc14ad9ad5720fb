// SPDX-License-Identifier: Apache-2.0
// Text from a trained model, token by token.
#pragma once

#include <torch/nn/modules/container/any.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shoal/cli/recipe.h"
#include "shoal/data/bpe.h"

namespace shoal::cli {

// The tokens of the prompt and those drawn after them: of the top_k likeliest, by their probabilities at that
// temperature. Stops at `end`, which is not among them. `vocab_size`: no token from there on is drawn.
std::vector<data::Token> drawn_after(torch::nn::AnyModule& model, std::vector<data::Token> prompt,
                                     const Recipe& recipe, std::int64_t vocab_size,
                                     std::optional<data::Token> end);
// The recipe's prompt written on by the model.
std::string sampled_text(torch::nn::AnyModule& model, const data::Bpe& bpe, const Recipe& recipe);

void write_tensors(std::map<std::string, at::Tensor> tensors, const std::string& path);  // as safetensors
int forward(const Recipe& recipe);  // what `generate` does with sample.inputs_file

}  // namespace shoal::cli
