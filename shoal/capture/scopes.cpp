// SPDX-License-Identifier: Apache-2.0
// What is made inside is seen through RecordFunction, the observer of each call of the dispatcher: modules have no
// hooks in C++, and a parameter is the tensor that some operator gave, here and in Python.
#include "shoal/capture/scopes.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/capture/recorded_tensor.h"

namespace shoal {

using capture::Entered;

namespace {

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Open {  // a scope that this thread is in
  Scope::Kind kind;
  Entered entered;
  std::vector<Weak> made;
};
thread_local std::vector<Open> open;  // the outermost first

constexpr std::size_t index_of(Scope::Kind kind) { return kind == Scope::Kind::Replicate ? 0 : 1; }
constexpr const char* name_of(Scope::Kind kind) {
  return kind == Scope::Kind::Replicate ? "replicate" : "split";
}

// Tensors that were made inside, of all threads: ranks may be threads, and one of them builds.
class Made {
 public:
  void add(const Open& scope) {
    const std::lock_guard lock(mutex_);
    for (const Weak& weak : scope.made) {
      if (weak.expired()) continue;
      auto& known = of_.try_emplace(weak._unsafe_get_target(), Known{weak, {}}).first->second;
      known.scopes[index_of(scope.kind)] = scope.entered;
    }
    if (of_.size() < 2 * swept_) return;
    std::erase_if(of_, [](const auto& each) { return each.second.tensor.expired(); });
    swept_ = std::max<std::size_t>(of_.size(), 1024);
  }
  std::optional<Entered> find(Scope::Kind kind, const at::Tensor& tensor) const {
    const std::lock_guard lock(mutex_);
    const auto found = of_.find(tensor.unsafeGetTensorImpl());
    return found == of_.end() ? std::nullopt : found->second.scopes[index_of(kind)];
  }

 private:
  struct Known {
    Weak tensor;  // while it is here, the address is not used again
    std::array<std::optional<Entered>, 2> scopes;
  };
  mutable std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Known> of_;
  std::size_t swept_ = 1024;
};

Made& all_made() {
  static Made made;
  return made;
}

}  // namespace

namespace {
// What a call was given it has not made: add_() and out= write it, contiguous() may hand it back.
struct Given : at::ObserverContext {
  std::vector<const c10::TensorImpl*> tensors;
};
}  // namespace

static std::unique_ptr<at::ObserverContext> begin_call(const at::RecordFunction& call) {
  auto given = std::make_unique<Given>();
  for (const c10::IValue& input : call.inputs())
    if (input.isTensor()) given->tensors.push_back(input.toTensor().unsafeGetTensorImpl());
  return given;
}

static void end_call(const at::RecordFunction& call, at::ObserverContext* context) {
  const auto& given = static_cast<const Given*>(context)->tensors;
  for (const c10::IValue& output : call.outputs()) {
    if (!output.isTensor() || !output.toTensor().defined()) continue;
    const at::Tensor& tensor = output.toTensor();
    if (std::ranges::find(given, tensor.unsafeGetTensorImpl()) != given.end()) continue;
    if (capture::recorded(tensor) != nullptr) continue;  // a model is called, and recorded
    for (Open& scope : open) scope.made.emplace_back(tensor.getIntrusivePtr());
  }
}

Scope::Scope(Kind kind, int devices) {
  SHOAL_CHECK(devices >= 0, InvalidInput, name_of(kind), "(", devices,
              "): a scope has a number of devices, or 0 for as many as there are");
  for (const Open& outer : open)
    SHOAL_CHECK(kind == Kind::Split && outer.kind == Kind::Replicate, InvalidInput, name_of(kind), "(",
                devices, ") inside ", name_of(outer.kind), "(", outer.entered.devices,
                "): ", kind == Kind::Split ? "what is split is split once" : "a stage has no stages in it",
                ". Remedy: end the outer scope first");
  static std::atomic<int> entered = 0;
  number_ = ++entered;
  open.push_back({.kind = kind, .entered = {.number = number_, .devices = devices}, .made = {}});
  if (open.size() == 1)
    watch_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(begin_call, end_call).needsInputs(true).needsOutputs(true));
}

Scope::~Scope() {
  if (watch_ != 0) at::removeCallback(watch_);
  const auto own = std::ranges::find(open, number_, [](const Open& each) { return each.entered.number; });
  if (own == open.end()) return;  // Python may end it in another thread
  all_made().add(*own);
  open.erase(own);
}

namespace capture {

std::optional<Entered> scope_of(Scope::Kind kind) {
  const auto found = std::ranges::find(open, kind, &Open::kind);
  return found == open.end() ? std::nullopt : std::optional(found->entered);
}

std::optional<Entered> scope_of(Scope::Kind kind, const at::Tensor& tensor) {
  return all_made().find(kind, tensor);
}

}  // namespace capture
}  // namespace shoal
