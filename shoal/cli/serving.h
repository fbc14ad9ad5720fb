// SPDX-License-Identifier: Apache-2.0
// A trained model whose rows are in tables, for serving: shoal ps export RUN TO, then shoal ps score TO SAMPLES.
//
//   ids.txt              graph (ir/text.h): items of a batch -> "ids.K", those of the K-th lookup
//   dense.txt            graph: items of a batch, "rows.K", the rows of those ids -> "logits"
//   dense.safetensors    its parameters and buffers
//   TABLE.0              rows, values alone (ps/save.h)
//   serving.json         samples a batch, the table of each lookup, the recipe
//
// So the rows may be served from elsewhere: the dense graph knows of no table.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/cli/recipe.h"
#include "shoal/ir/graph.h"
#include "shoal/ps/worker.h"
#include "shoal/runtime/executor.h"
#include "shoal/train/batch.h"

namespace shoal::cli {

// A forward graph that pulls rows, in two.
struct Cut {
  struct Lookup {
    std::string table;         // by the name of its parameter
    std::int64_t padding = 0;  // the id that is none; below 0: there is no such
  };
  ir::Graph ids, dense;
  std::vector<Lookup> lookups;  // by number
};
// Throws Infeasible naming what cannot be left out: values that it checks, tensors that are no part of the model.
Cut cut_after_lookups(const ir::Graph& graph);

// Of the newest whole checkpoint of a run (its job.dump_folder), rows with at least that score. Throws InvalidInput
// where there is none or it has no tables, Infeasible as cut_after_lookups().
void export_model(const std::filesystem::path& run, const std::filesystem::path& to, double min_score,
                  std::int64_t batch);

// Scores of samples by what was exported.
class Scorer {
 public:
  explicit Scorer(const std::filesystem::path& folder);  // throws InvalidInput, Corrupt naming the file
  const Recipe& recipe() const { return recipe_; }
  std::int64_t batch() const { return batch_; }  // samples at once
  // Logits f32 or f64 [batch]. Ids without a row have that which it would begin with.
  at::Tensor operator()(const Batch& samples);

 private:
  Recipe recipe_;
  std::int64_t batch_ = 0;
  std::unique_ptr<ps::Tables> tables_ = ps::tables_in_process();
  ps::Worker worker_{*tables_, {}};
  std::vector<ps::Worker::TableNumber> lookups_;  // the table of each
  std::optional<runtime::Executor> ids_, dense_;
};

}  // namespace shoal::cli
