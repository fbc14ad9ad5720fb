// SPDX-License-Identifier: Apache-2.0
// The config.json of Hugging Face's folders, for the models whose tensors have Hugging Face's names and
// shapes already.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "shoal/base/file_system.h"
#include "shoal/cli/recipe.h"

namespace shoal::cli {

// What from_pretrained reads beside model.safetensors; nullopt: transformers has no such model.
std::optional<std::string> config_json_of(const Recipe& recipe);

// Throws InvalidInput listing what a folder's config.json, if it has one, says otherwise than the recipe's
// model: heads, epsilons and activations show in no tensor's shape.
void check_config_json(FileSystem& files, const std::filesystem::path& folder, const Recipe& recipe);

}  // namespace shoal::cli
