// SPDX-License-Identifier: Apache-2.0
// Samples of Criteo's form, as the batches of a recipe of clicks.
#pragma once

#include <functional>

#include "shoal/cli/recipe.h"
#include "shoal/data/criteo.h"
#include "shoal/train/batch.h"

namespace shoal::cli {

// "inputs" [samples, 13], "categories" i64 [samples, 26] and "targets" [samples]; keys become ids as the model has ids
// for them.
std::function<Batch(const data::SlotBatch& samples)> click_batches(const Recipe& recipe);
data::KeyLayout click_keys();  // what their keys are laid out by

}  // namespace shoal::cli
