// SPDX-License-Identifier: Apache-2.0
// The parameter update: one loop over all elements of all tensors, in place on parameters and state.
// Gradients are only read; the factor of clipping is applied on the way.
#pragma once

#include <memory>

#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// shoal::clip(gradients, max_norm) -> norm, scale: the L2 norm of all gradients together, and
// min(1, max_norm / (norm + 1e-6)), 1 where max_norm is 0.
std::unique_ptr<Kernel> make_clip(const program::Program& program, const program::Compute& compute);
// The two halves of it, for gradients of which each rank has a part: shoal::sum_of_squares(gradients) -> f64
// [], and shoal::clip_by(squares, max_norm, dtype) -> norm, scale.
std::unique_ptr<Kernel> make_sum_of_squares(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_clip_by(const program::Program& program, const program::Compute& compute);
// shoal::sgd(parameters, gradients, momentum_buffers, lr, scale, momentum, weight_decay, nesterov), and with
// dampening: step, dampening
std::unique_ptr<Kernel> make_sgd(const program::Program& program, const program::Compute& compute);
// shoal::adam(parameters, gradients, exp_avgs, exp_avg_sqs, lr, step, scale, beta1, beta2, eps, weight_decay,
// decoupled)
std::unique_ptr<Kernel> make_adam(const program::Program& program, const program::Compute& compute);
// All of these but lion, lamb and muon also take maximize, which may be left out.
// shoal::adadelta(parameters, gradients, square_avgs, acc_deltas, lr, scale, rho, eps, weight_decay)
std::unique_ptr<Kernel> make_adadelta(const program::Program& program, const program::Compute& compute);
// shoal::adafactor(parameters, gradients, row_vars, col_vars, variances, lr, step, scale, beta2_decay, eps2,
// d, weight_decay, eps1): of whole tensors; eps1 may be left out: the type's epsilon
std::unique_ptr<Kernel> make_adafactor(const program::Program& program, const program::Compute& compute);
// shoal::adagrad(parameters, gradients, sums, lr, scale, eps, weight_decay), and with lr_decay: step,
// lr_decay
std::unique_ptr<Kernel> make_adagrad(const program::Program& program, const program::Compute& compute);
// shoal::adamax(parameters, gradients, exp_avgs, exp_infs, lr, step, scale, beta1, beta2, eps, weight_decay)
std::unique_ptr<Kernel> make_adamax(const program::Program& program, const program::Compute& compute);
// shoal::asgd(parameters, gradients, axs, etas, mus, lr, step, scale, lambd, alpha, t0, weight_decay): etas
// and mus are numbers
std::unique_ptr<Kernel> make_asgd(const program::Program& program, const program::Compute& compute);
// shoal::lamb(parameters, gradients, exp_avgs, exp_avg_sqs, lr, step, scale, beta1, beta2, eps, weight_decay)
std::unique_ptr<Kernel> make_lamb(const program::Program& program, const program::Compute& compute);
// The two halves of it, for tensors of which each rank has a part. The first makes the moments, and the
// squared norms of each parameter and direction, zeros where `adds` is 0; the parameters stay. The second
// takes norms that are summed over all ranks.
// shoal::lamb_moments(…, adds) -> parameters, exp_avgs, exp_avg_sqs, norms: f64 [2 n]
// shoal::lamb_step(parameters, exp_avgs, exp_avg_sqs, …, norms) -> parameters
std::unique_ptr<Kernel> make_lamb_moments(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_lamb_step(const program::Program& program, const program::Compute& compute);
// shoal::lion(parameters, gradients, exp_avgs, lr, scale, beta1, beta2, weight_decay)
std::unique_ptr<Kernel> make_lion(const program::Program& program, const program::Compute& compute);
// shoal::muon(parameters, gradients, momentum_buffers, lr, scale, weight_decay, momentum, nesterov, a, b, c,
// eps, steps, matches_rms): of whole matrices
std::unique_ptr<Kernel> make_muon(const program::Program& program, const program::Compute& compute);
// shoal::nadam(parameters, gradients, exp_avgs, exp_avg_sqs, mu_products, lr, step, scale, beta1, beta2, eps,
// weight_decay, momentum_decay, decoupled): mu_products are numbers
std::unique_ptr<Kernel> make_nadam(const program::Program& program, const program::Compute& compute);
// shoal::radam(parameters, gradients, exp_avgs, exp_avg_sqs, lr, step, scale, beta1, beta2, eps,
// weight_decay, decoupled)
std::unique_ptr<Kernel> make_radam(const program::Program& program, const program::Compute& compute);
// shoal::rmsprop(parameters, gradients, square_avgs, momentum_buffers, grad_avgs, lr, scale, alpha, eps,
// momentum, weight_decay)
std::unique_ptr<Kernel> make_rmsprop(const program::Program& program, const program::Compute& compute);
// shoal::rprop(parameters, gradients, prevs, step_sizes, lr, step, scale, shrink, grow, smallest, largest)
std::unique_ptr<Kernel> make_rprop(const program::Program& program, const program::Compute& compute);

}  // namespace shoal::runtime
