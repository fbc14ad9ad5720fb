// SPDX-License-Identifier: Apache-2.0
// What each optimizer keeps of a parameter.
#include <utility>

#include "shoal/compile/update.h"

namespace shoal::compile {

namespace {

struct KeptBy {
  using List = std::vector<Kept>;
  const ir::TensorType& parameter;
  DType numbers;

  List operator()(const SGD& sgd) const { return sgd.momentum > 0 ? like({"momentum_buffer"}) : List{}; }
  List operator()(const Adam& adam) const { return of_adam(adam.amsgrad); }
  List operator()(const AdamW& adam) const { return of_adam(adam.amsgrad); }
  List operator()(const Adadelta&) const { return like({"square_avg", "acc_delta"}); }
  List operator()(const Adamax&) const { return like({"exp_avg", "exp_inf"}); }
  List operator()(const RAdam&) const { return of_adam(false); }
  List operator()(const Rprop&) const { return like({"prev", "step_size"}); }
  List operator()(const LAMB&) const { return of_adam(false); }
  List operator()(const Adagrad&) const { return like({"sum"}); }
  List operator()(const Lion&) const { return like({"exp_avg"}); }
  List operator()(const Muon&) const { return like({"momentum_buffer"}); }
  List operator()(const RMSprop& rmsprop) const {
    List list = like({"square_avg"});
    if (rmsprop.momentum > 0) list.push_back({"momentum_buffer", parameter});
    if (rmsprop.centered) list.push_back({"grad_avg", parameter});
    return list;
  }
  List operator()(const NAdam&) const {
    List list = of_adam(false);
    list.push_back({"mu_product", number()});
    return list;
  }
  List operator()(const ASGD&) const { return {{"ax", parameter}, {"eta", number()}, {"mu", number()}}; }
  List operator()(const Adafactor&) const {
    if (parameter.shape.size() < 2) return like({"variance"});
    auto rows = parameter.shape, columns = parameter.shape;
    rows.back() = 1;
    columns[columns.size() - 2] = 1;
    return {{"row_var", ir::contiguous(parameter.dtype, rows)},
            {"col_var", ir::contiguous(parameter.dtype, columns)}};
  }

  List like(std::initializer_list<const char*> suffixes) const {
    List list;
    for (const char* suffix : suffixes) list.push_back({suffix, parameter});
    return list;
  }
  List of_adam(bool amsgrad) const {
    return amsgrad ? like({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}) : like({"exp_avg", "exp_avg_sq"});
  }
  ir::TensorType number() const { return ir::contiguous(numbers, {}); }
};

}  // namespace

std::vector<Kept> kept_by(const Optimizer& optimizer, const ir::TensorType& parameter, DType numbers) {
  return std::visit(KeptBy{parameter, numbers}, optimizer);
}

bool needs_whole(const Optimizer& optimizer) {
  return std::holds_alternative<Adafactor>(optimizer) || std::holds_alternative<Muon>(optimizer);
}

}  // namespace shoal::compile
