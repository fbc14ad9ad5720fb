// SPDX-License-Identifier: Apache-2.0
// A language model of LSTM layers: Zaremba et al., arXiv:1409.2329. Parameters have the names that PyTorch's
// own word language model gives them: encoder, rnn, decoder.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "models/configs.h"

namespace models {

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
