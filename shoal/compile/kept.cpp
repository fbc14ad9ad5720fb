// SPDX-License-Identifier: Apache-2.0
// What each optimizer keeps of a parameter.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/compile/update.h"
#include "shoal/sharding/state_blocks.h"

namespace shoal::compile {

namespace {

template <class Each>
constexpr std::string_view title_of() {
  return std::is_same_v<Each, Adafactor> ? "Adafactor" : std::is_same_v<Each, Muon> ? "Muon" : "LAMB";
}

struct KeptBy {
  using List = std::vector<Kept>;
  const ir::TensorType& parameter;
  std::optional<DType> state;
  DType numbers;
  rewrite::Master master;

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
    if (rmsprop.momentum > 0) append(list, like({"momentum_buffer"}));
    if (rmsprop.centered) append(list, like({"grad_avg"}));
    return list;
  }
  List operator()(const NAdam&) const {
    List list = of_adam(false);
    list.push_back({"mu_product", number()});
    return list;
  }
  List operator()(const ASGD&) const {
    List list = like({"ax"});
    append(list, {{"eta", number()}, {"mu", number()}});
    return list;
  }
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
    const bool is_coded = state == DType::UInt8 && sharding::is_coded(parameter.shape);
    ir::TensorType type = is_coded ? ir::contiguous(DType::UInt8, parameter.shape) : parameter;
    if (!is_coded) type.dtype = rewrite::gradient_type(parameter.dtype, master);
    if (state == DType::BFloat16) type.dtype = DType::BFloat16;
    for (const char* suffix : suffixes) list.push_back({suffix, type});
    if (is_coded)
      for (const char* suffix : suffixes)
        list.push_back(
            {name_of_maxima(suffix), ir::contiguous(DType::Float32, sharding::maxima_of(parameter.shape))});
    return list;
  }
  static void append(List& list, const List& more) { list.insert(list.end(), more.begin(), more.end()); }
  List of_adam(bool amsgrad) const {
    return amsgrad ? like({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}) : like({"exp_avg", "exp_avg_sq"});
  }
  ir::TensorType number() const { return ir::contiguous(numbers, {}); }
};

}  // namespace

std::vector<Kept> kept_by(const Optimizer& optimizer, const ir::TensorType& parameter, DType numbers,
                          rewrite::Master master) {
  auto kept = std::visit(KeptBy{parameter, state_dtype_of(optimizer), numbers, master}, optimizer);
  if (master == rewrite::Master::Kahan && rewrite::is_narrow(parameter.dtype, master))
    kept.push_back({"compensation", parameter});
  return kept;
}

void check_updates_narrow(const Optimizer& optimizer, rewrite::Master master) {
  std::visit(
      [&]<class Each>(const Each& each) {
        SHOAL_CHECK(
            requires { each.state_dtype; }, InvalidInput, "optimizer: ", title_of<Each>(),
            " looks at whole tensors, which precision.master=", name_of(master),
            " does not update; leave it at float32, with a model that is, or take an optimizer that goes "
            "element by element, such as AdamW");
      },
      optimizer);
}

std::optional<DType> state_dtype_of(const Optimizer& optimizer) {
  return std::visit(
      [](const auto& each) -> std::optional<DType> {
        if constexpr (requires { each.state_dtype; }) {
          if (!each.state_dtype || each.state_dtype == DType::Float32) return std::nullopt;
          SHOAL_CHECK(each.state_dtype == DType::BFloat16 || each.state_dtype == DType::UInt8, InvalidInput,
                      "optimizer: state_dtype is ", name_of(*each.state_dtype),
                      "; it must be f32, which is the parameter's type, bf16 or u8");
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

Uncut uncut_by(const Optimizer& optimizer, const std::vector<std::int64_t>& shape) {
  if (std::holds_alternative<Adafactor>(optimizer) || std::holds_alternative<Muon>(optimizer))
    return Uncut::All;
  return state_dtype_of(optimizer) == DType::UInt8 && sharding::is_coded(shape) ? Uncut::Blocks
                                                                                : Uncut::Elements;
}

std::string name_of_maxima(const std::string& suffix) { return suffix + "_absmax"; }

bool is_signed(std::string_view suffix) {
  static constexpr std::array<std::string_view, 5> kSigned = {"ax", "exp_avg", "grad_avg", "momentum_buffer",
                                                              "prev"};
  return std::ranges::find(kSigned, suffix) != kSigned.end();
}

}  // namespace shoal::compile
