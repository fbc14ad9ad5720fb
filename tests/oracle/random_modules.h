// SPDX-License-Identifier: Apache-2.0
// Random small modules.
//
// A program is a list of statements, each an operation with a few random numbers. Running it reads the numbers
// modulo what there is to choose from (tensors of the pool, dims, sizes), so eager, capture and ranks do the
// same. A statement that eager itself refuses (shapes, a saved value overwritten) throws c10::Error or
// Inapplicable: it is left out when the program is made.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <array>
#include <cstdint>
#include <exception>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "shoal/train/batch.h"

namespace random_modules {

using at::Tensor;
using shoal::Batch;

struct Statement {
  std::size_t operation = 0;  // row of a table
  std::array<std::uint32_t, 14> numbers = {};
};
using Statements = std::vector<Statement>;

Statement random_statement(std::mt19937_64& random);
// A line each, that begins with the operation's name.
std::string to_text(const Statements& statements);

// The statement cannot be run on the tensors that there are.
struct Inapplicable : std::exception {};

// Parameters, tied ones and unused ones among them, buffers, and views of both that were made before any
// capture.
class RandomModule : public torch::nn::Module {
 public:
  explicit RandomModule(std::uint64_t seed);

  std::map<std::int64_t, Tensor> matrices, vectors, means, variances, averages;  // by size
  Tensor cache, count;
  std::vector<Tensor> earlier;
};

Batch random_batch();

// A scalar of all that the statements make of the batch, parameters and buffers.
Tensor loss_of(RandomModule& module, const Statements& statements, const Batch& batch);

}  // namespace random_modules
