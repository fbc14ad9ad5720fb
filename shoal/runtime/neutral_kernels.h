// SPDX-License-Identifier: Apache-2.0
// Kernels of ops that the graph writes without a device: which of ATen's is taken is decided where they run.
#pragma once

#include <memory>

#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// shoal::attention(query, key, value, attn_mask, is_causal, scale) -> output, logsumexp
std::unique_ptr<Kernel> make_attention(const program::Program& program, const program::Compute& compute);
// shoal::attention_backward(grad_output, query, key, value, output, logsumexp, attn_mask, is_causal, scale)
//   -> grad_query, grad_key, grad_value
std::unique_ptr<Kernel> make_attention_backward(const program::Program& program,
                                                const program::Compute& compute);
// aten::_native_batch_norm_legit_functional: native_batch_norm on copies of the running statistics.
std::unique_ptr<Kernel> make_batch_norm(const program::Program& program, const program::Compute& compute);

// shoal::expect(self, condition, expected, otherwise) -> self; throws InvalidInput with that message where
// the condition is not what is expected. What a check of the model's would have raised.
std::unique_ptr<Kernel> make_expect(const program::Program& program, const program::Compute& compute);

// shoal::sparse_mm(indices, values, dense, rows): aten::sparse_mm of shoal/aten/sparse.h
std::unique_ptr<Kernel> make_sparse_mm(const program::Program& program, const program::Compute& compute);

// shoal::bernoulli(p, shape, dtype, seed, step, ordinal) and its kin: shoal/aten/random.h. A rank that draws
// a part has two more arguments: whole, the shape of the whole, and box, for each of its dims the number of
// ranges and then their begins and ends.
std::unique_ptr<Kernel> make_bernoulli(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_bernoulli_tensor(const program::Program& program,
                                              const program::Compute& compute);
std::unique_ptr<Kernel> make_exponential(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_normal(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_randint(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_uniform(const program::Program& program, const program::Compute& compute);
// shoal::random(op, …, seed, step, ordinal): the operator of ATen of that name, its arguments but the
// generator following: shoal/aten/whole_draw.h.
std::unique_ptr<Kernel> make_random(const program::Program& program, const program::Compute& compute);

}  // namespace shoal::runtime
