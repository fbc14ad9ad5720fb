// SPDX-License-Identifier: Apache-2.0
// A training step as data: typed values, nodes in an order they can run, named results. As text (text.h):
//
//   graph captured
//   %0 = parameter "fc.weight" : f32[4, 8]
//   %1 = input "x" : f32[2, 8]
//   %2 : f32[8, 4]{1,8} = aten::t(self=%0) @forward "fc"
//   %3 : f32[2, 4] = aten::mm(self=%1, mat2=%2) @forward "fc"
//   return loss "loss" %7, gradient "fc.weight" %9
//
// The graph is functional: no node changes a value. What a step changes (parameters, buffers, optimizer
// state) comes in as a source and leaves as a result of the same role and name.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shoal/base/dtype.h"
#include "shoal/base/id.h"

namespace shoal::ir {

// Places in Graph::values and Graph::nodes.
using ValueId = Id<struct ValueTag>;
using NodeId = Id<struct NodeTag>;

struct TensorType {                   // of a strided tensor
  DType dtype = DType::Float32;       // of its elements
  std::vector<std::int64_t> shape;    // in elements, dim by dim; [] has one
  std::vector<std::int64_t> strides;  // in elements, as long as shape
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

// Row-major strides of a shape, as ATen gives them (a dim of size 0 counts as 1).
std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape);
TensorType contiguous(DType dtype, std::vector<std::int64_t> shape);  // with these strides
std::int64_t num_elements(const TensorType& type);                    // the product of its shape
std::int64_t bytes_of(const TensorType& type);                        // num_elements × element size
bool is_contiguous(const TensorType& type);  // as at::Tensor::is_contiguous: dims of size 1 do not matter

enum class Role {  // what a value is to the step
  Parameter,
  Buffer,
  OptimizerState,
  Input,
  Constant,
  Scalar,
  Activation,
  Gradient,
  Loss,
  Output
};
enum class Phase { Forward, Backward, Update };  // part of a step

// How far a graph has come; each has its row of checks in verify.cpp.
enum class Form {
  Captured,  // of all ranks together
  Local      // of one rank
};

struct Symbol {      // a bare word among the arguments: a device, a layout, a memory format
  std::string name;  // as PyTorch writes it: "cpu", "strided", "channels_last"
  friend bool operator==(const Symbol&, const Symbol&) = default;
};

using ValueList = std::vector<std::optional<ValueId>>;  // of a list of tensors; nullopt: an undefined one

// What an argument can be. monostate is an absent optional ("none" in text).
using Attribute =
    std::variant<std::monostate, ValueId, ValueList, bool, std::int64_t, double, std::string, DType, Symbol,
                 std::vector<std::int64_t>, std::vector<double>, std::vector<bool>>;

struct Argument {    // of a call
  std::string name;  // as in the op's schema
  Attribute value;   // of the kind that the schema says
  // Numbers by their bits: a NaN is the same as itself, 0 is not -0.
  friend bool operator==(const Argument& a, const Argument& b);
};

struct Node {                                   // one call of an op
  std::string op;                               // "aten::add.Tensor": namespace, name, overload if it has one
  std::vector<Argument> arguments;              // all of the schema's, in its order, defaults filled in
  std::vector<std::optional<ValueId>> outputs;  // an undefined output of ATen is nullopt
  Phase phase = Phase::Forward;                 // which part of the step it belongs to
  std::string module;                           // path of the user's module, "h.0.attn"; "" is the root
  int stage = 0;                                // of a pipeline, from 0; without one all are of the first
  friend bool operator==(const Node&, const Node&) = default;
};

struct Value {                     // a tensor, and who makes it
  TensorType type;                 // dtype, shape, strides
  Role role = Role::Activation;    // what it is to the step
  std::optional<NodeId> producer;  // none: a source
  friend bool operator==(const Value&, const Value&) = default;
};

// A value that comes from outside: parameter, buffer, optimizer state, input, constant, scalar.
struct Source {
  ValueId value;
  std::string name;         // unique within its role: an input's path in the batch, a parameter's module path
  std::string fingerprint;  // of a constant: hash of its bytes; else empty
  friend bool operator==(const Source&, const Source&) = default;
};

// A value that leaves. `role` Loss, Gradient, Parameter, Buffer, OptimizerState or Output; a name is unique
// within its role.
struct Result {
  Role role;
  std::string name;
  ValueId value;
  friend bool operator==(const Result&, const Result&) = default;
};

// Plain data: fields may be read by anyone; `add_*` keep ids and producers right. Values and nodes are never
// removed in place: a rewrite makes a new graph (rebuild.h).
struct Graph {
  Form form = Form::Captured;   // whose it is: of all ranks, or of one
  std::vector<Value> values;    // by ValueId
  std::vector<Node> nodes;      // by NodeId, in an order they can run
  std::vector<Source> sources;  // in the order in which they were added
  std::vector<Result> results;  // likewise
  friend bool operator==(const Graph&, const Graph&) = default;

  const Value& at(ValueId id) const { return values.at(id.index); }  // std::out_of_range: none
  const Node& at(NodeId id) const { return nodes.at(id.index); }     // likewise

  // Each appends. Of a node one new value for each type given, nullopt for an undefined output.
  // An output's role is Activation in the forward phase, else Gradient. A result of a value that there is not is
  // Internal.
  NodeId add_node(Node node, const std::vector<std::optional<TensorType>>& types);
  ValueId add_source(Role role, std::string name, TensorType type, std::string fingerprint = "");
  void add_result(Role role, std::string name, ValueId value);
};

// Whether an input is no item of the batch but a tensor that the model reads where it finds it: in an
// attribute, a closure, another module. Its name begins with '~'.
inline bool is_beside(std::string_view input) { return input.starts_with('~'); }
// A sparse tensor of the batch is several inputs: "adj.@sparse.indices" is of the item "adj".
constexpr std::string_view kOfSparse = ".@sparse.";
inline std::string_view item_of(std::string_view input) { return input.substr(0, input.find(kOfSparse)); }

std::string_view name_of(Role role);                      // "parameter", "state", …
std::optional<Role> parse_role(std::string_view name);    // the inverse; nullopt: there is none
std::string_view name_of(Phase phase);                    // "forward", …
std::optional<Phase> parse_phase(std::string_view name);  // the inverse
std::string_view name_of(Form form);                      // "captured", "local"
std::optional<Form> parse_form(std::string_view name);    // the inverse

// The argument of that name, null if the node has none.
const Attribute* find(const Node& node, std::string_view argument);
// Every value the node reads, in argument order, repeats included.
std::vector<ValueId> inputs_of(const Node& node);
// The same node with every value that it reads replaced.
Node with_inputs(Node node, const std::function<ValueId(ValueId)>& replacement);

}  // namespace shoal::ir
