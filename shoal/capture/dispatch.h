// SPDX-License-Identifier: Apache-2.0
// Who is asked when an operator runs. The one place with process-wide state: LibTorch's dispatcher
// registrations.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>

namespace shoal::capture {

// Sees every operator that the threads under an Interception call, below autograd. `call` replaces the
// operator's arguments on the stack by its results; while it runs, operators go to their real backends again,
// without autograd.
class Interceptor {
 public:
  virtual ~Interceptor() = default;
  virtual void call(const c10::OperatorHandle& op, torch::jit::Stack& stack) = 0;
  // True for an operator without tensor arguments that `call` wants; the others run as they are.
  virtual bool wants_factory(const c10::OperatorHandle& op) = 0;
  // What one of those that run as they are has made.
  virtual void made(const at::Tensor&) {}
};

// While it lives, operators of this thread, and of autograd's threads that work for it, go to the
// interceptor.
//
//   user code → DeferredInit (factories) → autograd → PrivateUse1 (included by thread) → Interceptor::call
class Interception {
 public:
  explicit Interception(Interceptor& interceptor);  // borrowed
  ~Interception();
  Interception(const Interception&) = delete;
  Interception& operator=(const Interception&) = delete;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Whether this thread is under one: a model is recorded, or deferred.
bool is_intercepted();

}  // namespace shoal::capture
