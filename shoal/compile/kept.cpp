// SPDX-License-Identifier: Apache-2.0
// What each optimizer keeps of a parameter.
#include <string_view>
#include <type_traits>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/compile/update.h"

namespace shoal::compile {

namespace {

template <class Each>
constexpr std::string_view title_of() {
  return std::is_same_v<Each, Adafactor> ? "Adafactor" : std::is_same_v<Each, Muon> ? "Muon" : "LAMB";
}

struct KeptBy {
  using List = std::vector<Kept>;
  ir::TensorType parameter;  // in the state's dtype
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
  ir::TensorType state = parameter;
  state.dtype = state_dtype_of(optimizer).value_or(parameter.dtype);
  return std::visit(KeptBy{std::move(state), numbers}, optimizer);
}

std::optional<DType> state_dtype_of(const Optimizer& optimizer) {
  return std::visit(
      [](const auto& each) -> std::optional<DType> {
        if constexpr (requires { each.state_dtype; }) {
          if (!each.state_dtype || each.state_dtype == DType::Float32) return std::nullopt;
          SHOAL_CHECK(each.state_dtype == DType::BFloat16, InvalidInput, "optimizer: state_dtype is ",
                      name_of(*each.state_dtype), "; it must be f32, which is the parameter's type, or bf16");
          return each.state_dtype;
        }
        return std::nullopt;
      },
      optimizer);
}

void set_state_dtype(Optimizer& optimizer, DType dtype) {
  std::visit(
      [&]<class Each>(Each& each) {
        if constexpr (requires { each.state_dtype; })
          each.state_dtype = dtype;
        else
          SHOAL_CHECK(dtype == DType::Float32, InvalidInput, "optimizer: ", title_of<Each>(),
                      " looks at whole tensors, and its state has the parameter's type; leave state_dtype at "
                      "float32, or take an optimizer that goes element by element, such as AdamW");
      },
      optimizer);
}

bool needs_whole(const Optimizer& optimizer) {
  return std::holds_alternative<Adafactor>(optimizer) || std::holds_alternative<Muon>(optimizer);
}

}  // namespace shoal::compile
