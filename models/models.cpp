// SPDX-License-Identifier: Apache-2.0
#include "models/models.h"

namespace models {

// A config's module, one line a model.
static Bert module_of(const BertConfig& config) { return Bert(config); }
static Dcn module_of(const DcnConfig& config) { return Dcn(config); }
static DeepFm module_of(const DeepFmConfig& config) { return DeepFm(config); }
static Dlrm module_of(const DlrmConfig& config) { return Dlrm(config); }
static Gpt2 module_of(const Gpt2Config& config) { return Gpt2(config); }
static Llama module_of(const LlamaConfig& config) { return Llama(config); }
static Lstm module_of(const LstmConfig& config) { return Lstm(config); }
static Mlp module_of(const MlpConfig& config) { return Mlp(config); }
static Resnet module_of(const ResnetConfig& config) { return Resnet(config); }
static T5 module_of(const T5Config& config) { return T5(config); }
static Vit module_of(const VitConfig& config) { return Vit(config); }
static WideDeep module_of(const WideDeepConfig& config) { return WideDeep(config); }
static Word2Vec module_of(const Word2VecConfig& config) { return Word2Vec(config); }

torch::nn::AnyModule make(const Config& config) {
  return std::visit([](const auto& of_model) { return torch::nn::AnyModule(module_of(of_model)); }, config);
}

}  // namespace models
