// SPDX-License-Identifier: Apache-2.0
// What one rank runs: straight-line instructions on numbered slots. Nothing is decided after lowering.
//
//   source %0 parameter "w" : f32[4, 4]
//   source %1 input "x" : f32[2, 4]
//   gradients:
//   %2 : f32[2, 4] = aten::mm(self=%1, mat2=%0) "fc"
//   %3 : f32[2, 4] = aten::relu(self=%2) over %2 "fc"     in the memory of %2, which dies here
//   free %2
//   update:
//   %0, = shoal::sgd(parameters=[%0], …)                  in place: an output in its input's slot
//   return loss "loss" %9
//
// A slot bears the id of the graph's value that lives in it first, so a line here is found again in the
// graph.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::program {

using Slot = ir::ValueId;

// Among `arguments` a ValueId is the slot that is read.
struct Compute {
  std::string op;
  std::vector<ir::Argument> arguments;
  std::vector<std::optional<Slot>> outputs;  // nullopt: undefined
  std::optional<Slot> over;  // an input that dies here and whose memory the first output takes
  std::string module;        // path of the user's module that the node came from
  friend bool operator==(const Compute&, const Compute&) = default;
};

// Writes one slot's elements into a source: a buffer or parameter that the step changes without an update
// node.
struct Copy {
  Slot from;
  Slot to;
  friend bool operator==(const Copy&, const Copy&) = default;
};

struct Free {
  std::vector<Slot> slots;
  friend bool operator==(const Free&, const Free&) = default;
};

using Instruction = std::variant<Compute, Copy, Free>;

struct Source {  // filled from outside, never freed
  Slot slot;
  ir::Role role;
  std::string name;
  friend bool operator==(const Source&, const Source&) = default;
};

struct Result {  // lives to the end
  ir::Role role;
  std::string name;
  Slot slot;
  friend bool operator==(const Result&, const Result&) = default;
};

// Gradients computes loss, outputs, gradients and their norm, and changes no source. Update commits:
// optimizer ops write their sources in place, copies write changed buffers. Between the two the step can be
// looked at and dropped.
enum class Segment { Gradients, Update };

struct Program {
  std::vector<ir::TensorType> types;  // by slot
  std::vector<Source> sources;
  std::vector<Instruction> gradients;
  std::vector<Instruction> update;
  std::vector<Result> results;
  friend bool operator==(const Program&, const Program&) = default;

  const std::vector<Instruction>& operator[](Segment segment) const {
    return segment == Segment::Gradients ? gradients : update;
  }
};

// Null if there is none.
const Source* find_source(const Program& program, ir::Role role, std::string_view name);
const Result* find_result(const Program& program, ir::Role role, std::string_view name);

// The program of a graph that runs on one device. Throws Internal for a graph that breaks the rules of
// graph.h.
Program lower(const ir::Graph& graph);

std::string to_text(const Program& program);
std::string to_text(const Program& program, const Instruction& instruction);  // without the end of the line
Program from_text(std::string_view text);  // the inverse; throws InvalidInput with the line

}  // namespace shoal::program
