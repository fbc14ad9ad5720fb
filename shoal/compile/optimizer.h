// SPDX-License-Identifier: Apache-2.0
// Optimizers and learning-rate schedules as plain values; the Trainer appends their update to the captured
// graph.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal {

// Some of the parameters, with settings of their own. A parameter belongs to the first group that has it;
// those in no group take the optimizer's own settings. `lr` scales with the schedule as the optimizer's does.
struct ParameterGroup {
  std::function<bool(const std::string& name, const ir::TensorType& type)> contains;  // name: "fc.weight"
  std::optional<double> lr;                                                           // none: the optimizer's
  std::optional<double> weight_decay;                                                 // likewise
};

// Weight decay for matrices only: norms, biases and other tensors of fewer than two dims go without, as GPT-2
// was trained.
std::vector<ParameterGroup> no_decay_below_two_dims();

// Settings that several optimizers have, with the formulas and defaults of torch.optim; one that is out of
// its bounds is InvalidInput at the first step.
//
// `lr`: the learning rate, multiplied by the schedule's factor. `weight_decay`: how much of the parameter is
// added to its gradient or, where it is decoupled (`decoupled_weight_decay`), how much of it an update takes
// away, times the learning rate. `momentum`, `beta1`, `beta2`, `alpha`, `rho`: how much of an average an
// update keeps, of gradients or of their squares. `eps`: what keeps a divisor from 0, added to a root, in
// Adadelta below it, in Adamax to the size of a gradient; in Muon the least norm that is divided by.
// `amsgrad`: divides by the largest average so far. `nesterov`: looks ahead along the momentum. `groups`:
// parameters with other settings.
//
// `maximize`: the loss is to grow, as in torch.optim.
//
// `state_dtype`: what the state of each element is kept in. None, or Float32: the parameter's type. BFloat16:
// an update reads it, computes in the parameter's type, and rounds what it writes to the nearest, to even.
// UInt8: codes of 8 bits, and a float for every 256 elements of the tensor (Dettmers et al., arXiv:2110.02861,
// sections 2.1 and 2.2); tensors of fewer than 4096 elements keep the parameter's type.

// torch::optim::SGD: weight decay added to the gradient, momentum buffer, Nesterov's look-ahead. From the
// second update on the buffer gets 1 - dampening of the gradient.
struct SGD {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch::optim::Adam; Kingma & Ba, arXiv:1412.6980, algorithm 1; weight decay is added to the gradient.
// amsgrad: Reddi et al., arXiv:1904.09237.
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch::optim::AdamW; Loshchilov & Hutter, arXiv:1711.05101, algorithm 2; weight decay is decoupled.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch::optim::Adagrad; Duchi et al., JMLR 12, 2011. Update n is made with lr / (1 + (n - 1) lr_decay).
struct Adagrad {
  double lr = 1e-2;
  double lr_decay = 0;
  double eps = 1e-10;
  double weight_decay = 0;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch::optim::RMSprop; Hinton, lecture 6e; centered: Graves, arXiv:1308.0850. Weight decay is added to the
// gradient.
struct RMSprop {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch.optim.Adadelta; Zeiler, arXiv:1212.5701. Weight decay is added to the gradient.
struct Adadelta {
  double lr = 1;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch.optim.Adamax; Kingma & Ba, arXiv:1412.6980, algorithm 2; weight decay is added to the gradient.
struct Adamax {
  double lr = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch.optim.RAdam; Liu et al., arXiv:1908.03265. Weight decay is added to the gradient, or decoupled.
struct RAdam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch.optim.Rprop; Riedmiller & Braun, ICNN 1993: each element has a step of its own length, `lr` at first,
// which grows while its gradient keeps its sign and shrinks when it does not.
struct Rprop {
  double lr = 1e-2;
  double shrink = 0.5;          // torch's etas
  double grow = 1.2;            // likewise
  double smallest_step = 1e-6;  // torch's step_sizes
  double largest_step = 50;     // likewise
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch.optim.NAdam; Dozat, ICLR 2016 workshop. Weight decay is added to the gradient, or decoupled.
struct NAdam {
  double lr = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum_decay = 4e-3;  // momentum of update n: beta1 (1 - 0.96^(n momentum_decay) / 2)
  bool decoupled_weight_decay = false;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch.optim.ASGD; Polyak & Juditsky, 1992: SGD whose length falls, and in the state the average of what the
// parameter was after update `t0`. Update n + 1 is made with what lr was at update n.
struct ASGD {
  double lr = 1e-2;
  // Update n is made with lr / (1 + lambd lr (n - 1))^alpha, and takes lambd times that of the parameter
  // away.
  double lambd = 1e-4;
  double alpha = 0.75;
  double t0 = 1e6;
  double weight_decay = 0;
  bool maximize = false;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// torch.optim.Adafactor; Shazeer & Stern, arXiv:1804.04235: of matrices the state is a row and a column. It
// sees whole tensors: on several ranks each rank has all of these parameters' gradients and state. Weight decay
// is decoupled.
struct Adafactor {
  double lr = 1e-2;
  double beta2_decay = -0.8;   // of update n, averages of squares get n^beta2_decay of the new ones
  std::optional<double> eps1;  // none: the type's epsilon
  double eps2 = 1e-3;          // the least size of a parameter that lr is multiplied by: its root mean square
  double d = 1;                // the largest root mean square of an update before lr
  double weight_decay = 0;
  bool maximize = false;
  std::vector<ParameterGroup> groups = {};
};

// torch.optim.Muon; Jordan et al., 2024: momentum made orthogonal by Newton-Schulz steps in bfloat16. For
// matrices alone (a step with others throws InvalidInput), and whole ones, as Adafactor. Weight decay is
// decoupled.
struct Muon {
  enum class Adjust { Original, MatchRmsAdamW };  // of the rate, to a matrix's shape
  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  // A step makes a x + b x³ + c x⁵ of each singular value x.
  double a = 3.4445;
  double b = -4.775;
  double c = 2.0315;
  double eps = 1e-7;
  std::int64_t steps = 5;            // of Newton-Schulz
  Adjust adjust = Adjust::Original;  // which of these
  std::vector<ParameterGroup> groups = {};
};

// Chen et al., arXiv:2302.06675, algorithm 2: the sign of an interpolated momentum; weight decay is
// decoupled.
struct Lion {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  std::optional<DType> state_dtype = {};
  std::vector<ParameterGroup> groups = {};
};

// You et al., arXiv:1904.00962, algorithm 2, with phi the identity: Adam's direction plus weight decay, as
// long as the parameter tensor is.
struct LAMB {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 1e-2;
  std::vector<ParameterGroup> groups = {};
};

// One of them, by value.
using Optimizer = std::variant<SGD, Adam, AdamW, Adagrad, RMSprop, Adadelta, Adamax, RAdam, Rprop, Lion, LAMB,
                               NAdam, ASGD, Adafactor, Muon>;

// An optimizer for some of the parameters. A parameter belongs to the first part that has it; one that no
// part has is not updated.
struct OptimizerPart {
  std::function<bool(const std::string& name)> contains;  // empty: all
  Optimizer optimizer;                                    // of these
};

// A factor on every learning rate. Warm-up rises linearly over `warmup_steps` (step 1 gets 1/warmup_steps).
// Then
//
//   Constant  1 to the end
//   Linear    falls in a straight line to `min_factor` at `total_steps`
//   Cosine    falls to it along a cosine (Loshchilov & Hutter, arXiv:1608.03983, without restarts)
//   Stable    1 until the last `decay_steps`, in which it falls in a straight line to `min_factor`: warm-up,
//             stable, decay (Hu et al., arXiv:2404.06395), so that a run can be made longer before its decay
//             begins
struct LearningRateSchedule {
  enum class Decay { Constant, Linear, Cosine, Stable };  // as above
  Decay decay = Decay::Constant;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 0;  // needed by all but Constant
  double min_factor = 0;         // where a decay ends
  std::int64_t decay_steps = 0;  // of Stable
};

// The factor for update `step`, counted from 1. Throws InvalidInput for a step below 1, and a decay that has
// no steps after the warm-up.
double factor(const LearningRateSchedule& schedule, std::int64_t step);

}  // namespace shoal
