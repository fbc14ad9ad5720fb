// SPDX-License-Identifier: Apache-2.0
// Ops on a part of the vocabulary or of the classes: indices first … first + size of `whole`. An index that
// another rank has gives zeros here, so that the sum over the ranks is the result; one that no rank has is an
// error, as it is where one rank has all.
#pragma once

#include <memory>

#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// shoal::embedding_part(weight, indices, padding_idx, first, whole) -> output
std::unique_ptr<Kernel> make_embedding_part(const program::Program& program, const program::Compute& compute);
// shoal::embedding_backward_part(grad_output, indices, num_weights, padding_idx, first, whole) -> grad_weight
std::unique_ptr<Kernel> make_embedding_backward_part(const program::Program& program,
                                                     const program::Compute& compute);
// shoal::nll_loss_part(self, target, reduction, ignore_index, first, whole) -> output, total_weight; the
// weight is that of all targets, whichever rank has their class. No reduction is a mean.
std::unique_ptr<Kernel> make_nll_loss_part(const program::Program& program, const program::Compute& compute);
// shoal::nll_loss_backward_part(grad_output, self, target, reduction, ignore_index, total_weight, first,
// whole)
//   -> grad_self
std::unique_ptr<Kernel> make_nll_loss_backward_part(const program::Program& program,
                                                    const program::Compute& compute);

}  // namespace shoal::runtime
