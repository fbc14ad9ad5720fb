// SPDX-License-Identifier: Apache-2.0
// Rows of tables in a step (rewrite/tables.h): their kernels ask the worker that this rank is.
//
//   shoal::pull_rows(table, ids, padding_idx)                            rows, places
//   shoal::push_rows(tables, of, ids, places, gradients, counts, clicks, step, rate)
//   shoal::add_up_rows(tables, of, ids, places, gradients, counts, clicks, keep, weight)
//   shoal::push_sums(divisor, step, rate)
//
// `of` says of each lookup which of the tables it is of; counts are what its ids are shown by (f64, scalars), clicks
// those of its samples, or none.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "shoal/ps/worker.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// The tables of a model, by the name of its parameter.
struct RowTables {
  ps::Worker* worker = nullptr;  // borrowed
  std::map<std::string, ps::Worker::TableNumber> numbers = {};
};

bool is_of_rows(std::string_view op);
// `tables` outlive it, and may be null: then it says, when it runs, that there are none. Throws InvalidInput
// naming a table that is not among them.
std::unique_ptr<Kernel> make_of_rows(const program::Program& program, const program::Compute& compute,
                                     const RowTables* tables);

// Tells the worker of the rows that the program pulls next, by ids that are inputs as they are given.
// `input`: by its name, null where there is none.
void expect_rows(const program::Program& program, const RowTables& tables,
                 const std::function<const at::Tensor*(const std::string&)>& input);

}  // namespace shoal::runtime
