// SPDX-License-Identifier: Apache-2.0
// What runs beside what. A message (sharding/collective.h) is on the stream of its axis, all else on the one
// that computes:
//
//   compute   %5 = mm       %8 = mm       wait %6       %9 = add(%6, %8)
//   data              %6 = all_reduce(%5)
//
// Streams run side by side, each in the order of the program. A message starts as soon as the compute stream
// has come to it, those before it on its stream have started, and what other messages make for it is there. A
// Wait holds up the compute stream. As all ranks have their messages in one order, whoever waits in that order
// waits for nobody who waits for him.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/program/program.h"

namespace shoal::program {

// The axis of a message that is waited for; empty for all else. A send is not: what it sends is a copy. Throws
// InvalidInput for a message whose axis is no text.
std::string_view stream_of(const Instruction& instruction);

// Whether segments may leave messages under way for the next one: no step is looked at between them.
enum class Crossing { Between, None };  // those that compute gradients; none

// Puts waits into a program that has none, and no frees yet. What only moves what a message brought goes to
// where somebody looks at it, or to the end. Throws InvalidInput for fewer than 0 bytes.
void add_waits(Program& program, Crossing crossing, std::int64_t under_way_bytes);

// The instructions of all segments as tasks on streams, Frees left out.
struct Task {
  std::size_t segment = 0;      // of Program::segments
  std::size_t instruction = 0;  // of the segment
  int stream = 0;               // of Order::streams
  // Tasks that have to be done before it starts, besides those before it on its stream: of a message, the
  // one that the compute stream came to it from, and other messages that it reads from.
  std::vector<int> after;
};
struct Order {
  std::vector<std::string> streams;  // "compute" is the first
  std::vector<Task> tasks;           // in the order of the program
};
// All of a program.
Order order_of(const Program& program);

// What a program, which anybody may have written, does with messages under way that it may not: look at what
// they make, write over that or what they read, free it, or leave them under way where the step is looked at.
// Empty where nothing is wrong.
std::string fault_of(const Program& program);

}  // namespace shoal::program
