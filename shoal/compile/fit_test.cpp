// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/fit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/base/text.h"
#include "shoal/compile/stretches.h"
#include "shoal/ir/verify.h"
#include "shoal/program/memory.h"

using namespace shoal;
using namespace shoal::compile;
using ir::Phase;
using ir::ValueId;

namespace {

// Each node reads what the one before it has made: products with matrices of any width, and functions.
class Chain {
 public:
  Chain(int length, unsigned seed) : random_(seed) {
    value_ = graph_.add_source(ir::Role::Input, "x", matrix(width()));
    for (int i = 0; i < length; ++i) forward(i);
    ValueId gradient = add("aten::neg", {{"self", values_.back()}}, Phase::Forward, type(values_.back()));
    graph_.add_result(ir::Role::Loss, "loss", gradient);
    gradient = add("aten::neg", {{"self", gradient}}, Phase::Backward, type(gradient));
    for (int i = length; i-- > 0;) gradient = backward(i, gradient);
    graph_.add_result(ir::Role::Output, "dx", gradient);
    ir::verify(graph_);
  }
  const ir::Graph& graph() const { return graph_; }
  const std::vector<ValueId>& values() const { return values_; }

 private:
  std::int64_t width() { return 8 * std::uniform_int_distribution<std::int64_t>(1, 12)(random_); }
  static ir::TensorType matrix(std::int64_t width) { return ir::contiguous(DType::Float32, {16, width}); }
  const ir::TensorType& type(ValueId value) const { return graph_.at(value).type; }
  ValueId add(std::string op, std::vector<ir::Argument> arguments, Phase phase, ir::TensorType of) {
    ir::Node node{.op = std::move(op), .arguments = std::move(arguments), .outputs = {}, .phase = phase};
    return *graph_.at(graph_.add_node(std::move(node), {std::move(of)})).outputs[0];
  }
  void forward(int i) {
    is_product_.push_back(random_() % 2 == 0);
    before_.push_back(value_);
    if (is_product_.back()) {
      const std::int64_t columns = width();
      weights_.push_back(graph_.add_source(ir::Role::Parameter, concat("w", i),
                                           ir::contiguous(DType::Float32, {type(value_).shape[1], columns})));
      value_ =
          add("aten::mm", {{"self", value_}, {"mat2", weights_.back()}}, Phase::Forward, matrix(columns));
    } else {
      weights_.push_back(value_);
      value_ = add("aten::tanh", {{"self", value_}}, Phase::Forward, type(value_));
    }
    values_.push_back(value_);
  }
  ValueId backward(int i, ValueId gradient) {
    const auto at = static_cast<std::size_t>(i);
    if (!is_product_[at])
      return add("aten::tanh_backward", {{"grad_output", gradient}, {"output", values_[at]}}, Phase::Backward,
                 type(gradient));
    graph_.add_result(
        ir::Role::Gradient, concat("w", i),
        add("aten::mm", {{"self", before_[at]}, {"mat2", gradient}}, Phase::Backward, type(weights_[at])));
    return add("aten::mm", {{"self", gradient}, {"mat2", weights_[at]}}, Phase::Backward, type(before_[at]));
  }

  std::mt19937 random_;
  ir::Graph graph_;
  ValueId value_;
  std::vector<ValueId> values_, before_, weights_;
  std::vector<bool> is_product_;
};

program::Program lowered(const ir::Graph& graph) { return program::lower(graph); }

std::int64_t activations_of(const ir::Graph& graph) {
  std::int64_t most = 0;
  for (const auto& segment : program::memory_of(program::lower(graph), 1).activations)
    for (const auto& use : segment) most = std::max(most, use.peak);
  return most;
}

double work_in(const ir::Graph& graph) {
  double work = 0;
  for (const ir::Node& node : graph.nodes) work += time_of(graph, node);
  return work;
}

// Of every subset of the chain's values that is dropped: what it takes, and what it costs.
std::vector<std::pair<std::int64_t, double>> all_choices(const Chain& chain) {
  std::vector<std::pair<std::int64_t, double>> choices;
  for (std::size_t subset = 0; subset < std::size_t{1} << chain.values().size(); ++subset) {
    rewrite::Dropped dropped(chain.graph().values.size());
    for (std::size_t i = 0; i < chain.values().size(); ++i)
      dropped[chain.values()[i].index] = (subset >> i & 1) != 0;
    const ir::Graph graph = rewrite::recompute(chain.graph(), dropped);
    choices.emplace_back(activations_of(graph), work_in(graph) - work_in(chain.graph()));
  }
  return choices;
}

}  // namespace

TEST_CASE("on chains no choice that fits does less work again, and the least is the least") {
  int chosen = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const Chain chain(4 + static_cast<int>(seed % 6), seed);
    const auto choices = all_choices(chain);
    const std::int64_t least = std::ranges::min(choices).first, most = activations_of(chain.graph());
    for (int tenth = 0; tenth <= 10; ++tenth) {
      const std::int64_t bytes = least + (most - least) * tenth / 10;
      CAPTURE(bytes);
      double best = std::numeric_limits<double>::max();
      for (const auto& [takes, again] : choices)
        if (takes <= bytes) best = std::min(best, again);
      const Fit found = fit(chain.graph(), bytes, true, lowered);
      CHECK(found.again == doctest::Approx(best));
      CHECK(found.bytes <= bytes);
      CHECK(found.bytes == activations_of(rewrite::recompute(chain.graph(), found.dropped)));
      CHECK(found.bound <= found.again * (1 + 1e-9));
      chosen += found.again > 0;
    }
    if (least < most)
      CHECK(error_of([&] {
              fit(chain.graph(), least - 1, true, lowered);
            }).find(concat("the least that they take is ", least, " bytes")) != std::string::npos);
  }
  CHECK(chosen > 150);
}
