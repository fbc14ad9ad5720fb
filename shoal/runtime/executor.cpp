// SPDX-License-Identifier: Apache-2.0
// The loop that runs a program: a kernel, the frees that follow it, the next kernel. Messages are begun where
// they stand, or when what they read is there, and finished where the program waits for them
// (program/streams.h).
//
// Slots are handles of ATen's tensors; a free drops the handle, and the memory goes back to the pool under
// the executor (allocator.h) when no view holds it any more.
#include "shoal/runtime/executor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "shoal/aten/settled_math.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/comm/streams.h"
#include "shoal/ir/text.h"
#include "shoal/program/streams.h"
#include "shoal/runtime/allocator.h"
#include "shoal/runtime/collective_kernels.h"
#include "shoal/runtime/host_copies.h"
#include "shoal/runtime/kernel.h"
#include "shoal/runtime/not_finite.h"
#include "shoal/runtime/output_check.h"
#include "shoal/sharding/collective.h"

namespace shoal::runtime {

using program::Compute;
using program::Copy;
using program::Free;
using program::Program;
using program::Slot;
using program::Wait;

namespace {

class CopyKernel final : public Kernel {
 public:
  explicit CopyKernel(const Copy& copy) : copy_(copy) {}
  void run(Slots& slots) override { slots[copy_.to.index].copy_(slots[copy_.from.index]); }

 private:
  Copy copy_;
};

// Below autograd, autocast and whatever else the caller has switched on.
struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  at::NoGradGuard no_grad;
};

}  // namespace

struct Executor::State {
  struct Action {
    std::unique_ptr<Kernel> kernel;    // null for a wait
    const Compute* compute = nullptr;  // null for a copy and a wait; borrowed from the program
    std::vector<std::uint32_t> frees;  // after the kernel
    Message* message = nullptr;        // the kernel, of a message that is waited for
    std::vector<int> rows = {};        // of streams: its own, of a message, or those that are waited for

    std::string_view name() const {
      return compute != nullptr ? std::string_view(compute->op) : kernel != nullptr ? "copy" : "wait";
    }
  };

  Program program;
  std::vector<Slots> frames;  // by micro-batch
  std::vector<bool> is_source;
  bool has_peers;                            // other ranks run the same instructions
  std::vector<std::vector<Action>> actions;  // by segment
  std::vector<bool> checks_types;            // likewise: in its next run
  std::vector<UnderWay*> sends;              // of all segments
  FileMemory* files;
  const RowTables* tables;
  comm::Streams streams;  // last: what is under way goes before what it uses

  State(Program lowered, const Groups* groups, FileMemory* offloads_to, const RowTables* row_tables)
      : program(std::move(lowered)),
        frames(1, Slots{std::vector<at::Tensor>(program.types.size())}),
        is_source(program.types.size()),
        has_peers(groups != nullptr),
        actions(program.segments.size()),
        checks_types(program.segments.size()),
        files(offloads_to),
        tables(row_tables) {
    for (const auto& source : program.sources) is_source[source.slot.index] = true;
    for (std::size_t segment = 0; segment < actions.size(); ++segment)
      for (const auto& instruction : program.segments[segment].instructions)
        add(actions[segment], instruction, groups);
    const std::string fault = program::fault_of(program);
    SHOAL_CHECK(fault.empty(), InvalidInput, "executor: ", fault);
    streams = comm::Streams(rows());
  }

  // A row for each message that is waited for.
  std::vector<comm::Streams::Row> rows() {
    const auto order = program::order_of(program);
    std::vector<Action*> at;  // by task
    for (auto& list : actions)
      for (Action& action : list) at.push_back(&action);
    SHOAL_CHECK(at.size() == order.tasks.size(), Internal, "executor: ", at.size(), " actions of ",
                order.tasks.size(), " tasks");
    std::vector<comm::Streams::Row> found;
    std::vector<int> row_of(at.size(), -1);
    for (std::size_t task = 0; task < at.size(); ++task) {
      const auto& [segment, instruction, stream, after] = order.tasks[task];
      std::vector<int> needs;
      for (const int other : after)
        if (row_of[static_cast<std::size_t>(other)] >= 0)
          needs.push_back(row_of[static_cast<std::size_t>(other)]);
      if (stream == 0) {
        at[task]->rows = std::move(needs);
        continue;
      }
      row_of[task] = static_cast<int>(found.size());
      at[task]->message = static_cast<Message*>(at[task]->kernel.get());
      at[task]->rows = {row_of[task]};
      found.push_back({at[task]->message, stream, std::move(needs)});
    }
    return found;
  }

  // A new one has what all micro-batches have.
  Slots& frame(std::size_t microbatch) {
    while (microbatch >= frames.size()) {
      Slots slots{std::vector<at::Tensor>(program.types.size()), static_cast<int>(frames.size())};
      for (const auto& source : program.sources)
        if (!is_of_one(source.role)) slots[source.slot.index] = frames[0][source.slot.index];
      frames.push_back(std::move(slots));
    }
    return frames[microbatch];
  }
  static bool is_of_one(ir::Role role) { return role == ir::Role::Input || role == ir::Role::Scalar; }

  void add(std::vector<Action>& list, const program::Instruction& instruction, const Groups* groups) {
    if (const auto* compute = std::get_if<Compute>(&instruction)) {
      list.push_back({kernel_of(*compute, groups), compute, {}});
    } else if (const auto* copy = std::get_if<Copy>(&instruction)) {
      list.push_back({std::make_unique<CopyKernel>(*copy), nullptr, {}});
    } else if (std::holds_alternative<Wait>(instruction)) {
      list.emplace_back();
    } else {
      SHOAL_CHECK(!list.empty(), Internal, "executor: a segment begins with a free");
      for (const Slot slot : std::get<Free>(instruction).slots) list.back().frees.push_back(slot.index);
    }
  }

  std::unique_ptr<Kernel> kernel_of(const Compute& compute, const Groups* groups) {
    if (sharding::is_collective(compute.op)) return make_collective(program, compute, groups, &sends);
    if (is_of_rows(compute.op)) return make_of_rows(program, compute, tables);
    if (compute.op != "shoal::to_file") return make_kernel(program, compute);
    SHOAL_CHECK(files != nullptr, InvalidInput, "executor: the program offloads, and there is no file");
    return make_to_file(compute, *files);
  }

  void run_kernel(Action& action, Slots& slots, observe::Trace* trace) {
    if (action.message != nullptr) {
      action.message->prepare(slots, trace);
      streams.start(action.rows[0]);
    } else if (action.kernel != nullptr) {
      action.kernel->run(slots);
    } else {
      for (const int row : action.rows) streams.wait(row);
    }
  }
  void run_action(Action& action, Slots& slots, bool checks, observe::Trace* trace) {
    run_kernel(action, slots, trace);
    if (checks && action.compute != nullptr) check_outputs(program, *action.compute, slots);
    for (const auto slot : action.frees) slots[slot].reset();
    for (UnderWay* send : sends) send->go_on();
    streams.go_on();
  }

  std::int64_t bytes_made(const Action& action) const {
    std::int64_t bytes = 0;
    if (action.compute != nullptr)
      for (const auto& output : action.compute->outputs)
        if (output) bytes += ir::bytes_of(program.types[output->index]);
    return bytes;
  }

  void release(Slots& slots) const {
    for (std::size_t slot = 0; slot < slots.tensors.size(); ++slot)
      if (!is_source[slot]) slots[slot].reset();
  }
  void release() {
    streams.drop();
    for (Slots& slots : frames) release(slots);
  }

  // An error from below, told with the place it came from.
  [[noreturn]] void fail_at(const Action& action, ErrorKind kind, std::string_view what) {
    const std::string op(action.name());
    const std::string module = action.compute != nullptr ? action.compute->module : "";
    release();
    fail(kind, op, module.empty() ? "" : " in module ", module, ": ", what);
  }

  // `at` is the action that `body` has come to.
  template <class Body>
  void guarded(const std::vector<Action>& list, const std::size_t& at, const Body& body) {
    try {
      body();
    } catch (const Error&) {
      release();
      throw;
    } catch (const std::bad_alloc&) {
      fail_at(list[at], ErrorKind::Infeasible, "out of memory: use a smaller batch or model");
    } catch (const c10::OutOfMemoryError& error) {
      fail_at(list[at], ErrorKind::Infeasible, error.what_without_backtrace());
    } catch (const c10::Error& error) {
      fail_at(list[at], ErrorKind::InvalidInput, error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail_at(list[at], ErrorKind::Internal, error.what());
    }
  }

  void check_bound(const Slots& slots) const {
    for (const auto& source : program.sources)
      SHOAL_CHECK(slots[source.slot.index].defined(), InvalidInput, "executor: ", ir::name_of(source.role),
                  " \"", source.name, "\" is not bound");
  }
};

Executor::Executor(Program program, const Groups* groups, FileMemory* files, const RowTables* tables)
    : state_(std::make_unique<State>(std::move(program), groups, files, tables)) {
  install_allocator();
  aten::settle_math();
}
Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;

void Executor::bind(ir::Role role, std::string_view name, at::Tensor tensor, std::size_t microbatch) {
  const auto* source = program::find_source(state_->program, role, name);
  SHOAL_CHECK(source != nullptr, InvalidInput, "executor: the program has no ", ir::name_of(role), " \"",
              name, "\"");
  bind(source->slot, std::move(tensor), microbatch);
}

void Executor::bind(Slot slot, at::Tensor tensor, std::size_t microbatch) {
  const program::Source* source = nullptr;
  for (const auto& candidate : state_->program.sources)
    if (candidate.slot == slot) source = &candidate;
  SHOAL_CHECK(source != nullptr, InvalidInput, "executor: slot %", slot.index, " is not a source");
  const auto& wanted = state_->program.types[slot.index];
  SHOAL_CHECK(tensor.defined() && tensor.scalar_type() == aten::to_torch(wanted.dtype) &&
                  tensor.sizes() == wanted.shape,
              InvalidInput, "executor: ", ir::name_of(source->role), " \"", source->name, "\" is ",
              ir::to_text(wanted), ", got ",
              tensor.defined() ? ir::to_text(aten::type_of(tensor)) : "an undefined tensor");
  if (tensor.strides() != wanted.strides && !(tensor.is_contiguous() && ir::is_contiguous(wanted))) {
    SHOAL_CHECK(source->role == ir::Role::Input || source->role == ir::Role::Constant, InvalidInput,
                "executor: ", ir::name_of(source->role), " \"", source->name, "\" is ", ir::to_text(wanted),
                ", got ", ir::to_text(aten::type_of(tensor)), ": its strides have changed");
    const BelowAutograd below;
    at::Tensor copy = at::empty_strided(wanted.shape, wanted.strides, tensor.options());
    copy.copy_(tensor);
    tensor = std::move(copy);
  }
  Slots& slots = state_->frame(microbatch);
  if (!State::is_of_one(source->role))
    for (Slots& others : state_->frames) others[slot.index] = tensor;
  slots[slot.index] = std::move(tensor);
}

void Executor::set_argument(std::size_t segment, std::size_t instruction, std::size_t argument,
                            ir::Attribute value) {
  State& state = *state_;
  auto& compute = std::get<Compute>(state.program.segments.at(segment).instructions.at(instruction));
  compute.arguments.at(argument).value = std::move(value);
  for (auto& action : state.actions[segment])
    if (action.compute == &compute) action.kernel = make_kernel(state.program, compute);
}

void Executor::run(std::size_t segment, std::size_t microbatch, observe::Trace* trace) {
  State& state = *state_;
  auto& actions = state.actions.at(segment);
  if (actions.empty()) return;
  Slots& slots = state.frame(microbatch);
  state.check_bound(slots);
  const BelowAutograd below;
  const PoolScope pool;
  const bool checks = state.checks_types[segment];
  state.checks_types[segment] = false;
  std::size_t at = 0;
  const auto run_all = [&] {
    if (trace == nullptr) {
      for (; at < actions.size(); ++at) state.run_action(actions[at], slots, checks, nullptr);
      return;
    }
    for (; at < actions.size(); ++at) {
      State::Action& action = actions[at];
      observe::Span span(action.message == nullptr ? trace : nullptr, action.name(),
                         state.bytes_made(action));
      state.run_action(action, slots, checks, trace);
      span.set_memory(memory_counts().live_bytes);
    }
  };
  state.guarded(actions, at, run_all);
}

void Executor::run_gradients(observe::Trace* trace) {
  release();
  for (std::size_t segment = 0; segment < program().segments.size(); ++segment)
    if (program().segments[segment].phase != ir::Phase::Update) run(segment, 0, trace);
}

void Executor::run_update(observe::Trace* trace) {
  for (std::size_t segment = 0; segment < program().segments.size(); ++segment)
    if (program().segments[segment].phase == ir::Phase::Update) run(segment, 0, trace);
}

std::vector<program::MemoryUse> Executor::run_measured(std::size_t segment) {
  State& state = *state_;
  Slots& slots = state.frame(0);
  state.check_bound(slots);
  const BelowAutograd below;
  const PoolScope pool;
  std::vector<program::MemoryUse> uses;
  auto& actions = state.actions.at(segment);
  for (std::size_t at = 0; at < actions.size(); ++at) {
    reset_peak();
    state.guarded(actions, at, [&] { state.run_action(actions[at], slots, false, nullptr); });
    const MemoryCounts counts = memory_counts();
    uses.push_back({.peak = counts.peak_bytes, .after = counts.live_bytes});
  }
  return uses;
}

at::Tensor Executor::result(ir::Role role, std::string_view name, std::size_t microbatch) const {
  const auto* result = program::find_result(state_->program, role, name);
  SHOAL_CHECK(result != nullptr, InvalidInput, "executor: the program has no result ", ir::name_of(role),
              " \"", name, "\"");
  return at(result->slot, microbatch);
}

const at::Tensor& Executor::at(Slot slot, std::size_t microbatch) const {
  return state_->frames.at(microbatch).tensors.at(slot.index);
}

void Executor::check_types() { state_->checks_types.assign(state_->actions.size(), true); }

void Executor::release() { state_->release(); }
void Executor::release(std::size_t microbatch) { state_->release(state_->frame(microbatch)); }

void Executor::finish_sends() const {
  for (UnderWay* send : state_->sends) send->arrive();
}

void Executor::release_inputs() {
  for (const auto& source : state_->program.sources)
    if (source.role == ir::Role::Input || source.role == ir::Role::Scalar ||
        source.role == ir::Role::Gradient)
      for (Slots& slots : state_->frames) slots[source.slot.index].reset();
}

const Compute* Executor::first_not_finite() {
  State& state = *state_;
  Slots& slots = state.frame(0);
  state.check_bound(slots);
  state.release();
  const BelowAutograd below;
  const PoolScope pool;
  FirstNotFinite first;
  for (std::size_t segment = 0; segment < state.actions.size(); ++segment) {
    if (state.program.segments[segment].phase == ir::Phase::Update) continue;
    auto& actions = state.actions[segment];
    for (std::size_t at = 0; at < actions.size(); ++at) {
      if (first.is_found() && !state.has_peers) break;  // others wait for this rank's collectives
      state.guarded(actions, at, [&] {
        if (actions[at].kernel != nullptr) actions[at].kernel->run(slots);
      });
      if (actions[at].compute != nullptr) first.look_at(*actions[at].compute, slots);
      for (const auto slot : actions[at].frees) slots[slot].reset();
    }
  }
  state.release();
  return first.of_all();
}

const Program& Executor::program() const { return state_->program; }

}  // namespace shoal::runtime
