// SPDX-License-Identifier: Apache-2.0
// Parameters of a model whose rows are in tables, on servers or in the process: embeddings that are larger than
// memory, or that a step reads a few rows of. The model says nothing of it.
//
//   ps::Client client(key, endpoints);
//   Trainer trainer(model, loss, AdamW{}, {.tables = {.tables = &client,
//       .placements = {{.parameters = "emb.weight", .optimizer = ps::RowOptimizer{.rate = 0.02}}}}});
//
// Such a parameter has no memory from then on; a step asks for the rows of its batch, and what comes back of their
// gradients is applied where the rows are, once a step, summed over all ranks. One that something but lookups reads is
// asked for whole: a row is what stands at one index of its first dim, and a vector is one row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/ps/exchange.h"
#include "shoal/ps/tables.h"

namespace shoal {

struct TablePlacement {    // of the parameters that one pattern names
  std::string parameters;  // by name, "emb.*.weight": '*' stands for any characters but '.'
  // What updates a row: none is the trainer's own optimizer, where it leaves rows that a step has not read as
  // they are (SGD and Adagrad, without momentum and weight decay).
  std::optional<ps::RowOptimizer> optimizer = {};
  // What a row begins with. None: the values that the parameter has, which the first rank puts there.
  std::optional<ps::Initial> initial = {};
  std::uint64_t seed = 0;  // of what rows begin with
  // Of rows; none: the parameter's type, or BFloat16 of a float32 one.
  std::optional<DType> dtype = {};
  // Parts of a row, by their widths from its begin; none: one. Others are as `optimizer` and `initial` say.
  std::vector<ps::Part> parts = {};
  // As in ps::Definition.
  ps::Admission admission = {};
  bool scored = false;
  ps::Life life = {};
  // Of scored rows, the input of a step that has of each sample how often it was clicked, by its name: "targets". Of
  // shape [samples], and ids of [samples, …]. None: nothing is clicked.
  std::string clicks = {};
  std::uint32_t shards = 1024;
};

struct TableOptions {  // where tables are, and which parameters' rows are in them
  // Borrowed; of one rank, which has them by itself. null: in this process, of a trainer of one rank.
  ps::Tables* tables = nullptr;
  // Of each table in this process; 0: any. Other rows lie in a folder that is this process's alone, and is emptied.
  std::int64_t memory_bytes = 0;
  std::string cold_folder = {};
  std::vector<TablePlacement> placements = {};  // the first that names a parameter counts
  // How steps reach them; which worker this is is filled in.
  ps::ExchangeOptions exchange = {};
  // Checkpoints between two that have all rows, which have only those that changed, and want the ones before.
  std::uint32_t save_deltas = 0;
  // Rows that are there already, of a run before: an error, or they go, or training goes on with them.
  enum class Before { Refuse, Clear, Keep };
  Before before = Before::Refuse;
};

}  // namespace shoal
