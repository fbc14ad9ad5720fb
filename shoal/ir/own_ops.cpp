// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/own_ops.h"

#include <algorithm>
#include <iterator>

namespace shoal::ir {

using enum OwnOp::Kind;

static constexpr OwnOp kOwnOps[] = {
    {"shoal::accumulate", Update, {"sums"}},
    {"shoal::adadelta", Update, {"parameters", "square_avgs", "acc_deltas", "compensations", "maxima"}},
    {"shoal::adafactor", Update, {"parameters", "row_vars", "col_vars", "variances"}},
    {"shoal::adagrad", Update, {"parameters", "sums", "compensations", "maxima"}},
    {"shoal::adam",
     Update,
     {"parameters", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "compensations", "maxima"}},
    {"shoal::adamax", Update, {"parameters", "exp_avgs", "exp_infs", "compensations", "maxima"}},
    {"shoal::add_up_rows", Rows},
    {.name = "shoal::all_gather", .kind = Message, .message = "all_gather"},
    {.name = "shoal::all_gather_into", .kind = Message, .writes = {"wholes"}, .message = "all_gather"},
    {.name = "shoal::all_reduce", .kind = Message, .lender = "self", .message = "all_reduce"},
    {.name = "shoal::all_to_all", .kind = Message, .message = "all_to_all"},
    {"shoal::asgd", Update, {"parameters", "axs", "etas", "mus", "compensations", "maxima"}},
    {.name = "shoal::attention", .has_flops = true},
    {.name = "shoal::attention_backward", .has_flops = true},
    {"shoal::bernoulli", Random},
    {"shoal::bernoulli_tensor", Random},
    {"shoal::clip"},
    {"shoal::clip_by"},
    {"shoal::combine", Move},
    {"shoal::embedding_backward_part"},
    {"shoal::embedding_part"},
    {"shoal::expect"},
    {"shoal::exponential", Random},
    {"shoal::lamb", Update, {"parameters", "exp_avgs", "exp_avg_sqs"}},
    {"shoal::lamb_moments", Update, {"parameters", "exp_avgs", "exp_avg_sqs"}},
    {"shoal::lamb_step", Update, {"parameters"}},
    {"shoal::lion", Update, {"parameters", "exp_avgs", "compensations", "maxima"}},
    {"shoal::muon", Update, {"parameters", "momentum_buffers"}},
    {"shoal::nadam",
     Update,
     {"parameters", "exp_avgs", "exp_avg_sqs", "mu_products", "compensations", "maxima"}},
    {"shoal::nll_loss_backward_part"},
    {"shoal::nll_loss_part"},
    {"shoal::normal", Random},
    {"shoal::pack", Move},
    {"shoal::pack_parts", Move},
    {.name = "shoal::part", .kind = Move, .is_view = true},
    {"shoal::pull_rows", Rows},
    {"shoal::push_rows", Rows},
    {"shoal::push_sums", Rows},
    {"shoal::radam", Update, {"parameters", "exp_avgs", "exp_avg_sqs", "compensations", "maxima"}},
    {"shoal::randint", Random},
    {"shoal::random", Random},
    {.name = "shoal::receive", .kind = Message, .message = "receive"},
    {.name = "shoal::reduce_scatter", .kind = Message, .message = "reduce_scatter"},
    {"shoal::rmsprop",
     Update,
     {"parameters", "square_avgs", "momentum_buffers", "grad_avgs", "compensations", "maxima"}},
    {"shoal::rprop", Update, {"parameters", "prevs", "step_sizes", "compensations", "maxima"}},
    {.name = "shoal::send", .kind = Message, .message = "send"},
    {"shoal::sgd", Update, {"parameters", "momentum_buffers", "compensations", "maxima"}},
    {"shoal::sparse_mm"},
    {"shoal::sum_of_squares"},
    {"shoal::to_device", Move},
    {"shoal::to_file", Move},
    {"shoal::to_host", Move},
    {"shoal::transfer", Plan},
    {"shoal::uniform", Random},
    {.name = "shoal::unpack", .kind = Move, .is_view = true},
    {"shoal::unpack_into", Move, {"wholes"}},
    {"shoal::unpack_parts", Move},
};
static_assert(std::ranges::is_sorted(kOwnOps, {}, &OwnOp::name), "kOwnOps: keep it in alphabetical order");

std::span<const OwnOp> own_ops() { return kOwnOps; }

const OwnOp* find_own_op(std::string_view op) {
  const auto* found = std::ranges::lower_bound(kOwnOps, op, {}, &OwnOp::name);
  return found != std::end(kOwnOps) && found->name == op ? found : nullptr;
}

}  // namespace shoal::ir
