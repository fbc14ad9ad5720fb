// SPDX-License-Identifier: Apache-2.0
// The gradient of an embedding has as many rows as the vocabulary, but only those that were looked up are not
// zero. Where the looked-up rows are few, ranks exchange them, in place of all that their sums have:
//
//   %5 P(sum) = embedding_dense_backward(%3 S(0), %4 S(0))    %5 R = embedding_dense_backward(%3 R, %4 R)
//   all_reduce of %5: the vocabulary                          all_gather of %3 and %4: the tokens
//
// A table that is tied to what makes the logits has a dense summand too, made when backward begins. That one is
// reduced at once, while backward goes on; what is added to it last is few rows:
//
//   %8 P(sum) = mm(…)                                         %8 P(sum), handed on R
//   …                                                         …
//   %9 P(sum) = add(%8 P(sum), %5 P(sum))                     %9 R = add(%8 R, %5 R)
//
// Kim et al., Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks (EuroSys 2019), choose by
// variable, as Horovod does; a tied table is of both kinds here.
#pragma once

#include "shoal/rewrite/place.h"

namespace shoal::rewrite {

// Gradients that micro-batches add up stay as they are: their sums are not of few rows.
Placed with_sparse_gradients(Placed placed);

}  // namespace shoal::rewrite
