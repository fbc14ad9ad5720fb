// SPDX-License-Identifier: Apache-2.0
// A recipe's model keys are named as in config.json. What is otherwise:
//
//   recipe                          config.json
//   model.name                      model_type, architectures, the name of the activation
//   model.rope_theta, rope_factor   rope_parameters: {rope_theta, factor, …}; before transformers 5
//                                   rope_theta beside rope_scaling: {factor, …}
//   model.head_dim = 0              absent: as the width says
#include "shoal/cli/hugging_face.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::cli {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

struct Family {
  std::string_view model;
  std::string_view architecture;
  std::string_view activation_key;
  std::string_view activation;       // as the model has it
  std::string_view same_activation;  // another name for it
};

}  // namespace

static constexpr std::array kFamilies = {
    Family{"gpt2", "GPT2LMHeadModel", "activation_function", "gelu_new", "gelu_pytorch_tanh"},
    Family{"llama", "LlamaForCausalLM", "hidden_act", "silu", "swish"},
};

static constexpr std::string_view kRope = "rope_";

static const Family* family_of(const Recipe& recipe) {
  const auto found = std::ranges::find(kFamilies, recipe.model.name, &Family::model);
  return found == kFamilies.end() ? nullptr : &*found;
}

// The model's keys, as JSON.
static json keys_of(const Recipe& recipe) {
  Recipe copy = recipe;
  json keys = json::object();
  for (const Option& option : options_of(copy))
    if (option.section == "model" && option.key != "name" && option.key != "flavor")
      keys[std::string(option.key)] = json::parse(value_of(option), nullptr, false);
  return keys;
}

std::optional<std::string> config_json_of(const Recipe& recipe) {
  const Family* family = family_of(recipe);
  if (family == nullptr) return std::nullopt;
  json config = {{"model_type", family->model},
                 {"architectures", {family->architecture}},
                 {family->activation_key, family->activation},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr}};
  json rope = json::object();
  const json keys = keys_of(recipe);  // which items() borrows from
  for (const auto& [key, value] : keys.items()) {
    if (key == "head_dim" && value == 0) continue;
    if (key.starts_with(kRope) && key != "rope_theta")
      rope[key.substr(kRope.size())] = value;
    else
      config[key] = value;
  }
  if (!rope.empty()) {
    const bool is_stretched = rope.value("factor", 1.0) > 1;
    if (!is_stretched) rope = json::object();
    rope["rope_type"] = is_stretched ? "llama3" : "default";
    rope["rope_theta"] = config["rope_theta"];
    config["rope_parameters"] = rope;
  }
  if (family->model == "gpt2") config["tie_word_embeddings"] = true;
  return config.dump(2) + "\n";
}

// Both ways of saying rotary frequencies as the recipe's keys.
static void flatten_rope(json& config) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (!config.contains(name) || !config[name].is_object()) continue;
    const json rope = config[name];
    for (const auto& [key, value] : rope.items())
      config[key == "rope_theta" ? key : std::string(kRope) + key] = value;
  }
}

void check_config_json(FileSystem& files, const fs::path& folder, const Recipe& recipe) {
  const fs::path path = folder / "config.json";
  const Family* family = family_of(recipe);
  if (family == nullptr || !files.exists(path)) return;
  json config = json::parse(read_text(files, path), nullptr, false);
  SHOAL_CHECK(config.is_object(), Corrupt, path.string(), ": does not read as JSON");
  flatten_rope(config);
  std::string differences;
  const json keys = keys_of(recipe);  // which items() borrows from
  for (const auto& [key, here] : keys.items()) {
    const bool is_of_training = key.ends_with("pdrop") || key.ends_with("dropout");
    const bool is_implied = key == "head_dim" && here == 0;
    if (!config.contains(key) || config[key].is_null() || is_of_training || is_implied || config[key] == here)
      continue;
    differences += concat("\n  model.", key, " is ", here.dump(), ", there ", config[key].dump());
  }
  const std::string activation = config.value(family->activation_key, std::string(family->activation));
  if (activation != family->activation && activation != family->same_activation)
    differences += concat("\n  ", family->activation_key, " there is ", in_quotes(activation), ", here ",
                          family->activation);
  if (keys.contains("rope_factor")) {
    const std::string here = keys["rope_factor"] > 1 ? "llama3" : "default";
    const std::string there =
        config.value("rope_rope_type", config.value("rope_type", std::string("default")));
    if (there != here) differences += concat("\n  rope_type there is ", in_quotes(there), ", here ", here);
  }
  SHOAL_CHECK(differences.empty(), InvalidInput, path.string(), " does not fit the recipe:", differences);
}

}  // namespace shoal::cli
