// SPDX-License-Identifier: Apache-2.0
// Parameters whose rows are in tables, on servers or in the process (ps/worker.h): what looks rows up pulls those
// of its ids, and their gradients are pushed. The parameter itself stays as a name without elements.
//
//   before                                        after
//   %0 = parameter "emb.weight" : f32[1000, 16]   %0 = parameter "emb.weight" : f32[0]
//   %1 = input "ids" : i64[8]                     %1 = input "ids" : i64[8]
//   %2 = embedding(weight=%0, indices=%1)         %2, %3 = pull_rows(table=%0, ids=%1)    rows and their places
//   …                                             %4 = full([], 1)
//   %9 = embedding_dense_backward(%8, %1)         push_rows(tables=[%0], of=[0], ids=[%1], places=[%3],
//   return gradient "emb.weight" %9                         gradients=[%8], counts=[%4], clicks=[none],
//                                                           step, rate) @update
//
// Here all rows of the batch are asked for, and a rank does so for its part of the batch; that each id goes over
// the wire once, with one sum, is the worker's business, as is what other ranks push. An id that several ranks look up
// for the same samples is shown once all the same: counts are 1 on one of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/table_spec.h"

namespace shoal::rewrite {

// Scalars: how many updates there were with this one (i64), and what multiplies every row's rate (f64).
inline constexpr std::string_view kRowsStep = "rows.step", kRowsRate = "rows.rate";
// Of micro-batches (f64): 0 in the first, else 1; how much this one counts; what all together are divided by.
inline constexpr std::string_view kRowsKeep = "rows.keep", kRowsWeight = "rows.weight",
                                  kRowsDivisor = "rows.divisor";

enum class RowGradients {
  None,   // nothing becomes of them
  Push,   // shoal::push_rows
  AddUp,  // shoal::add_up_rows, and shoal::push_sums by another graph
};

// Of a captured graph; `parameters`: each by its name. Throws InvalidInput naming parameter, op and module where their
// gradient is more than the sum of its lookups', or clicks are not of the samples that the ids are of.
ir::Graph tables(ir::Graph graph, const std::vector<TableSpec>& parameters, RowGradients then);

// Appends to a graph of sums what pushes those of rows.
void append_push_of_sums(ir::Graph& graph);

}  // namespace shoal::rewrite
