// SPDX-License-Identifier: Apache-2.0
// A language model of LSTM layers: Zaremba et al., arXiv:1409.2329. Parameters have the names that PyTorch's
// own word language model gives them: encoder, rnn, decoder.
#pragma once

#include <torch/nn.h>

#include <cstdint>

namespace models {

struct LstmConfig {
  std::int64_t vocab_size = 10000;
  std::int64_t embedding_size = 650;
  std::int64_t hidden_size = 650;
  std::int64_t num_layers = 2;
  double dropout = 0.5;  // of the embedding, between layers and before the decoder

  friend bool operator==(const LstmConfig&, const LstmConfig&) = default;
};

class LstmImpl : public torch::nn::Module {
 public:
  explicit LstmImpl(const LstmConfig& config);
  at::Tensor forward(const at::Tensor& tokens_BT);  // int64 [batch, time] → logits [batch, time, vocab_size]

 private:
  torch::nn::Dropout drop_{nullptr};
  torch::nn::Embedding encoder_{nullptr};
  torch::nn::LSTM rnn_{nullptr};
  torch::nn::Linear decoder_{nullptr};
};
TORCH_MODULE(Lstm);

}  // namespace models
