// SPDX-License-Identifier: Apache-2.0
// Runs a Program on ATen: kernels are looked up once, then each step only fills tensors in and calls them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/observe/trace.h"
#include "shoal/program/memory.h"
#include "shoal/program/program.h"
#include "shoal/runtime/file_memory.h"
#include "shoal/runtime/groups.h"
#include "shoal/runtime/row_kernels.h"

namespace shoal::runtime {

// One thread at a time. Runs below autograd whatever mode the caller is in; results do not require grad.
class Executor {
 public:
  // Throws InvalidInput naming an op that is not loaded, an argument that does not fit its schema, or what is
  // wrong with the program's waits. A program with collectives is given the communicators of its mesh, one that
  // offloads the memory that it does so to, and one that reads rows of tables those; all outlive the executor.
  explicit Executor(program::Program program, const Groups* groups = nullptr, FileMemory* files = nullptr,
                    const RowTables* tables = nullptr);
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  // Fills a source, until it is bound again: parameters, state and constants once, inputs and scalars each
  // step. The tensor is shared, and the update segment writes into it. Throws InvalidInput naming the source
  // if dtype or shape is another. Other strides than the graph's: an input is copied to the graph's, for
  // others it is an error.
  // An input or a scalar is that of one micro-batch, all else of all.
  void bind(ir::Role role, std::string_view name, at::Tensor tensor, std::size_t microbatch = 0);
  void bind(program::Slot source, at::Tensor tensor, std::size_t microbatch = 0);

  // One segment of program().segments for one micro-batch: what others have made of the same micro-batch is
  // there for it. Throws InvalidInput if a source is not bound. An error of a kernel is thrown as Error with
  // op and module added, and everything but the sources is released. `trace` may be null.
  void run(std::size_t segment, std::size_t microbatch = 0, observe::Trace* trace = nullptr);
  // Of a step of one micro-batch: all segments before the update's, after release(); and the update's.
  void run_gradients(observe::Trace* trace = nullptr);
  void run_update(observe::Trace* trace = nullptr);

  // Another constant in place of a number that an op of ATen's takes; `instruction` counts within the
  // segment.
  void set_argument(std::size_t segment, std::size_t instruction, std::size_t argument, ir::Attribute value);

  // The next run of each segment holds what ATen's kernels give against the types of the program, strides
  // included, and throws Internal naming op and module where one is another.
  void check_types();

  // The same, and what the allocator had while each instruction but the frees ran and after it: of the whole
  // process, in which nobody else may be at work.
  std::vector<program::MemoryUse> run_measured(std::size_t segment);

  // A result after the segment that makes it, until release() or run_gradients(). Not a copy.
  at::Tensor result(ir::Role role, std::string_view name, std::size_t microbatch = 0) const;
  // What is in a slot now: undefined if it is free or was never filled.
  const at::Tensor& at(program::Slot slot, std::size_t microbatch = 0) const;

  // Lets go of every value but the sources: of all micro-batches, or of one.
  void release();
  void release(std::size_t microbatch);
  // Until other ranks have what was sent to them: a process may end after it.
  void finish_sends() const;
  // Lets go of inputs, scalars and sums of gradients too, so that they are not kept alive between steps.
  void release_inputs();

  // Runs forward and backward again on what is bound now and stops at the first instruction with a NaN or an
  // infinity in an output, none in its inputs. Borrowed from program(); null if all are finite. Slow: for a
  // report.
  const program::Compute* first_not_finite();

  const program::Program& program() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::runtime
