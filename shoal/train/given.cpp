// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/given.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <map>

#include "shoal/base/error.h"
#include "shoal/runtime/redistribution.h"

namespace shoal::train {

using capture::NamedTensor;

void reduce(Trainer::Given& given, const std::vector<NamedTensor>& parameters, const Rank& rank) {
  const at::NoGradGuard no_grad;
  // Samples, loss, and for each parameter whether there is a gradient of it.
  constexpr std::size_t kHead = 2;
  at::Tensor numbers = at::zeros({static_cast<std::int64_t>(kHead + parameters.size())}, at::kDouble);
  auto* const number = numbers.data_ptr<double>();
  number[0] = given.samples;
  number[1] = given.samples == 0 ? 0 : given.loss * given.samples;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    number[kHead + i] = given.gradients.contains(parameters[i].name) ? 1 : 0;
  runtime::all_reduce(numbers, comm::ReduceOp::Sum, rank.control);
  const double samples = number[0];
  SHOAL_CHECK(samples > 0, InvalidInput, "trainer: no rank has a sample");
  given.loss = number[1] / samples;

  std::map<at::ScalarType, std::vector<const NamedTensor*>> by_type;  // they travel together
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (number[kHead + i] > 0) by_type[parameters[i].tensor.scalar_type()].push_back(&parameters[i]);
  for (const auto& [type, members] : by_type) {
    std::vector<at::Tensor> flat;
    for (const auto* member : members) {
      const auto mine = given.gradients.find(member->name);
      flat.push_back(mine == given.gradients.end() || given.samples == 0
                         ? at::zeros({member->tensor.numel()}, member->tensor.options())
                         : mine->second.reshape(-1).mul(given.samples / samples));
    }
    at::Tensor all = at::cat(flat);
    runtime::all_reduce(all, comm::ReduceOp::Sum, rank.groups.world());
    std::int64_t begin = 0;
    for (const auto* member : members) {
      const auto size = member->tensor.numel();
      given.gradients[member->name] = all.narrow(0, begin, size).view(member->tensor.sizes()).clone();
      begin += size;
    }
  }
}

}  // namespace shoal::train
