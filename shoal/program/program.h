// SPDX-License-Identifier: Apache-2.0
// What one rank runs: straight-line instructions on numbered slots. Nothing is decided after lowering.
//
//   source %0 parameter "w" : f32[4, 4]
//   source %1 input "x" : f32[2, 4]
//   forward:
//   %2 : f32[2, 4] = aten::mm(self=%1, mat2=%0) "fc"
//   %3 : f32[2, 4] = aten::relu(self=%2) over %2 "fc"     in the memory of %2, which dies here
//   free %2
//   backward:
//   …
//   %9 : f32[4, 4] = shoal::all_reduce(self=%8, …)        starts: it goes on beside what follows (streams.h)
//   …
//   wait %9                                               until it is done
//   update:
//   %0, = shoal::sgd(parameters=[%0], …)                  in place: an output in its input's slot
//   return loss "loss" %9
//
// A slot bears the id of the graph's value that lives in it first, so a line here is found again in the
// graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::program {

using Slot = ir::ValueId;  // where a tensor lies while it lives

// One call of an op. Among `arguments` a ValueId is the slot that is read.
struct Compute {
  std::string op;  // as in ir::Node
  std::vector<ir::Argument> arguments;
  std::vector<std::optional<Slot>> outputs;  // nullopt: undefined
  std::optional<Slot> over;  // an input that dies here and whose memory the first output takes
  std::string module;        // path of the user's module that the node came from
  friend bool operator==(const Compute&, const Compute&) = default;
};

// Writes the elements of slot `from` into the source in slot `to`: a buffer or parameter that the step
// changes without an update node.
struct Copy {
  Slot from;
  Slot to;
  friend bool operator==(const Copy&, const Copy&) = default;
};

struct Free {  // the slots that are not read again
  std::vector<Slot> slots;
  friend bool operator==(const Free&, const Free&) = default;
};

// Holds up what computes until messages (streams.h) are done, which are named by the slots that they make.
struct Wait {
  std::vector<Slot> slots;
  friend bool operator==(const Wait&, const Wait&) = default;
};

// What a rank does next.
using Instruction = std::variant<Compute, Copy, Free, Wait>;

struct Source {               // filled from outside, never freed
  Slot slot;                  // where it is read
  ir::Role role;              // as in the graph
  std::string name;           // likewise
  bool is_offloaded = false;  // lies in a file (rewrite/offload.h)
  friend bool operator==(const Source&, const Source&) = default;
};

struct Result {      // lives to the end
  ir::Role role;     // as in the graph
  std::string name;  // likewise
  Slot slot;         // where it is then
  friend bool operator==(const Result&, const Result&) = default;
};

// A stretch of a step, which begins when all that it reads of other segments is there. Forward computes loss
// and outputs, backward gradients and their norm; both change no source. Update commits: optimizer ops write
// their sources in place, copies write changed buffers. Before it the step can be looked at and dropped.
//
// A stage of a pipeline has its own forward, backward and update, which are run once for each micro-batch: what they
// make is that micro-batch's, sources but inputs and scalars are of all (Executor). What a stage of another rank
// sends is a segment of that stage, and a backward in two parts has a second one, "weights 1:", from which nothing
// comes but the stage's gradients: any time after the first. runs.h says when each is run.
struct Segment {
  ir::Phase phase = ir::Phase::Forward;   // which it is of
  int stage = 0;                          // of a pipeline, from 0
  bool is_weights = false;                // of Backward
  std::vector<Instruction> instructions;  // in the order in which they are begun
  friend bool operator==(const Segment&, const Segment&) = default;
};

struct Program {
  std::vector<ir::TensorType> types;  // by slot
  std::vector<Source> sources;        // in the order of the graph's
  std::vector<Segment> segments;      // in an order that they can run
  std::vector<Result> results;        // in the order of the graph's
  friend bool operator==(const Program&, const Program&) = default;
};

// Where the instruction stands that is the n-th of all segments together.
struct Place {
  std::size_t segment;      // its number in Program::segments
  std::size_t instruction;  // and in that segment
};
Place place_of(const Program& program, std::size_t n);
std::size_t size_of(const Program& program);  // instructions of all segments

// The number of a segment; nothing if there is none. Of a backward in two parts: the first; the second.
std::optional<std::size_t> find_segment(const Program& program, ir::Phase phase, int stage);
std::optional<std::size_t> find_weights(const Program& program, int stage);
// Whether one micro-batch may have two segments in either order: weights come any time between their stage's
// backward and its update.
bool are_unordered(const Segment& a, const Segment& b);
// Null if there is none.
const Source* find_source(const Program& program, ir::Role role, std::string_view name);
const Result* find_result(const Program& program, ir::Role role, std::string_view name);

// When buffers that forward has changed become what it has made of them: with the update, so that a step can
// be dropped, or at the end of forward, where the next micro-batch's comes before the update.
enum class Buffers { InUpdate, AfterForward };
// Whether what leads to a stage's gradients alone, to no other stage and no other result, is a segment of its own.
enum class Backward { Whole, InTwoParts };

// The program of a graph that one device runs: one segment of each phase for each of its `stages`, some of them
// empty, and those of stages that send to it; forward from the first stage on, all else from the last. Messages are
// waited for where somebody looks at what they make, or would write over what they read, and at the latest
// where the step is looked at; earlier where more than `under_way_bytes` would be under way, 0: at once. Throws
// Internal for a graph that breaks the rules of graph.h, and InvalidInput for a buffer that is to change after
// forward and that backward, or another stage, reads as it was.
Program lower(const ir::Graph& graph, Buffers buffers = Buffers::InUpdate, std::int64_t under_way_bytes = 0,
              const std::vector<int>& stages = {0}, Backward backward = Backward::Whole);

std::string to_text(const Program& program);                                  // one line an instruction
std::string to_text(const Program& program, const Instruction& instruction);  // without the end of the line
Program from_text(std::string_view text);  // the inverse; throws InvalidInput with the line

}  // namespace shoal::program
