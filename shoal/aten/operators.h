// SPDX-License-Identifier: Apache-2.0
// Operators by name, and their arguments as the IR writes them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>
#include <string>

#include "shoal/ir/graph.h"

namespace shoal::aten {

std::string name_of(const c10::FunctionSchema& schema);  // "aten::add.Tensor"
// The inverse; nullopt: no such op is loaded.
std::optional<c10::OperatorHandle> find_operator(const std::string& name);

// An argument that holds no tensor, from and to ATen. `type` is the schema's: it tells a dtype or a device
// from an int. Throws InvalidInput for kinds the IR has no form for (complex scalars, generators, classes).
ir::Attribute attribute_of(const c10::IValue& value, const c10::Argument& argument);
// Tensors are asked for through `tensor_of`.
c10::IValue ivalue_of(const ir::Attribute& attribute, const c10::Argument& argument,
                      const std::function<at::Tensor(ir::ValueId)>& tensor_of);

}  // namespace shoal::aten
