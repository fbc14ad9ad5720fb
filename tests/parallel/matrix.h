// SPDX-License-Identifier: Apache-2.0
// One cell of the matrix: a small model trained on one device, and by ranks as threads, and compared.
#pragma once

#include <string>
#include <vector>

#include "shoal/train/verify.h"
#include "tests/oracle/cases.h"

namespace shoal::matrix {

struct Strategy {
  std::string name;
  int replicate = 1, shard = 1, tensor = 1;
  int zero_stage = -1;
  std::string plan = {};  // text
};

struct Outcome {
  train::Comparison worst;
  std::string error;  // what was thrown; empty if nothing
};

// Three steps in float64 with dropout, clipping, AdamW.
Outcome run(const cases::ModelCase& model, const Strategy& strategy);

}  // namespace shoal::matrix
