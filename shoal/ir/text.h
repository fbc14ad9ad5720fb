// SPDX-License-Identifier: Apache-2.0
// Graphs as text: what people read, diff, edit and put into bug reports. from_text(to_text(g)) == g.
//
//   graph captured
//   %0 = parameter "fc.weight" : f32[4, 8]
//   %1 = constant "c0" : f32[2, 8] fingerprint "9e107d9d"
//   %2 : f32[8, 4]{1,8} = aten::t(self=%0) @forward "fc"            strides only where they are not row-major
//   %3 : f32[2, 4], _ = ns::op(x=%1, w=%2, eps=1e-05, n=1, d=f32)   an undefined output is _
//     @backward                                                     the root module goes without a name
//   %4 loss : f32[] = aten::sum(self=%3, dtype=none) @forward       a role where the phase does not give it
//   return loss "loss" %4
//
// Arguments: 1 is an int, 1.0 a double, true a bool, f32 a dtype, strided a symbol, "a" a string, none an
// absent optional; [1], [1.0], [true] and [%1, none] are lists, [], float[], bool[] and %[] the empty ones of
// each kind. A name that would read as something else is quoted: symbol"none". Space and line breaks do not
// matter.
#pragma once

#include <string>
#include <string_view>

#include "shoal/ir/graph.h"

namespace shoal::ir {

// Of a graph in which every value has a source or a producer (as `verify` demands).
std::string to_text(const Graph& graph);
std::string to_text(const TensorType& type);        // "f32[4, 8]{1,4}"
std::string to_text(const Argument& argument);      // "dim=0"
std::string word_or_quoted(std::string_view text);  // as ops are printed
// One node on one line, without a line break; for messages.
std::string to_text(const Graph& graph, const Node& node);

// Throws InvalidInput that names line, column, what was expected and what was found. Ids are checked to be
// those of values that the text defines, each once; all else about the graph is for `verify` to judge.
Graph from_text(std::string_view text);

}  // namespace shoal::ir
