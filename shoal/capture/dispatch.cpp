// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/dispatch.h"

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <type_traits>

#include "shoal/aten/operators.h"
#include "shoal/base/error.h"
#include "shoal/capture/composites.h"
#include "shoal/capture/derivatives.h"
#include "shoal/capture/nested.h"
#include "shoal/capture/sparse.h"

namespace shoal::capture {

static constexpr std::string_view kInstalledName = "SHOAL_INTERCEPTOR";
// LibTorch 2.13 names a kind, and 2.11 has 256 numbers for them.
template <class Kind>
static constexpr Kind kind_of_ours() {
  if constexpr (std::is_enum_v<Kind>)
    return static_cast<Kind>(200);
  else
    return Kind{&kInstalledName};
}
static constexpr auto kInstalled = kind_of_ours<c10::DebugInfoKind>();

// Travels with ThreadLocalDebugInfo to autograd's threads. The key set is the one of the start, not computed
// from the current one: DispatchKeySet::operator- leaves backend bits behind, and the recorder would call
// itself for ever.
namespace {
struct Installed : c10::DebugInfoBase {
  Installed(Interceptor& to, c10::impl::LocalDispatchKeySet before) : interceptor(to), below(before) {
    below.excluded_ =
        below.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
  }
  Interceptor& interceptor;
  c10::impl::LocalDispatchKeySet below;
};
}  // namespace

static Installed* installed() { return static_cast<Installed*>(c10::ThreadLocalDebugInfo::get(kInstalled)); }

bool is_intercepted() { return installed() != nullptr; }

static void intercept(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Installed* to = installed();
  SHOAL_CHECK(
      to, InvalidInput, aten::name_of(op.schema()),
      " is called on a tensor that was recorded in a capture which has ended; it holds no data. Do not keep "
      "activations outside the model between steps: write what must last into a buffer with copy_()");
  c10::impl::ForceDispatchKeyGuard guard(to->below);
  to->interceptor.call(op, *stack);
}

static bool has_tensor_argument(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    c10::TypePtr type = argument.type();
    if (const auto list = type->cast<c10::ListType>()) type = list->getElementType();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (const auto list = type->cast<c10::ListType>()) type = list->getElementType();
    if (type->kind() == c10::TypeKind::TensorType) return true;
  }
  return false;
}

// These two have a decomposition for other devices, which rounds otherwise, beside the kernels of CPU and
// CUDA.
static bool decomposes(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name != "aten::silu_backward" && name != "aten::mish_backward" &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// Factories bypass thread-local backend keys (BackendSelect computes a key set of its own), but not this one.
static void intercept_factories(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack* stack) {
  Installed* to = installed();
  const bool is_factory = to != nullptr && !has_tensor_argument(op.schema());
  if (is_factory && to->interceptor.wants_factory(op)) {
    c10::impl::ForceDispatchKeyGuard guard(to->below);
    to->interceptor.call(op, *stack);
    return;
  }
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::DeferredInit), stack);
  if (!is_factory) return;
  for (const auto& result : torch::jit::last(*stack, op.schema().returns().size()))
    if (result.isTensor()) to->interceptor.made(result.toTensor());
}

// How many operators the process has ever known; to list them takes a millisecond.
static std::int64_t num_registrations() {
  static std::atomic<std::int64_t> count = 0;
  struct Counts final : c10::OpRegistrationListener {
    void onOperatorRegistered(const c10::OperatorHandle&) override { ++count; }
    void onOperatorDeregistered(const c10::OperatorHandle&) override {}
  };
  static const auto listener =
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Counts>());
  return count;
}

// One boxed kernel for every operator that does not decompose by itself: structured and CompositeExplicit
// kernels win over a fallback. Once a process, at the first capture; operators that are loaded later join at
// the next one.
static void register_kernels() {
  static std::mutex mutex;
  static std::set<std::string> registered;     // guarded by mutex, as are `libraries` and `seen`
  static std::list<torch::Library> libraries;  // a registration lasts as long as its Library
  static std::int64_t seen = -1;
  const std::scoped_lock lock(mutex);
  if (seen == num_registrations()) return;
  if (libraries.empty()) {
    auto& all =
        libraries.emplace_back(torch::Library::IMPL, "_", c10::DispatchKey::DeferredInit, __FILE__, __LINE__);
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept_factories>());
    auto& autograd = libraries.emplace_back(torch::Library::IMPL, "aten",
                                            c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
    register_composites(autograd);
    register_derivatives(autograd);
    register_nested(autograd);
    auto& own = libraries.emplace_back(torch::Library::FRAGMENT, "shoal", std::nullopt, __FILE__, __LINE__);
    define_read(own);
    define_sparse_mm(own);
    register_sparse(
        [](c10::DispatchKey key) -> torch::Library& {
          auto& fallback = libraries.emplace_back(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
          fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
          return libraries.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
        },
        [] { return torch::CppFunction::makeFromBoxedFunction<&intercept>(); });
  }
  std::map<std::string, torch::Library*> by_namespace;
  seen = num_registrations();
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    const auto space = name.getNamespace();
    if (!op || !space || *space == "prim" || *space == "prims" || registered.contains(toString(name)))
      continue;
    if (decomposes(*op) || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
        !has_tensor_argument(op->schema()))
      continue;
    auto& library = by_namespace[std::string(*space)];
    if (!library)
      library = &libraries.emplace_back(torch::Library::IMPL, std::string(*space),
                                        c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    library->impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&intercept>());
    registered.insert(toString(name));
  }
}

// Taken away again as a whole: LibTorch 2.11's IncludeDispatchKeyGuard leaves the backend's bit behind, and every
// tensor of the thread would then look as if it was recorded.
static c10::impl::LocalDispatchKeySet with_ours(c10::impl::LocalDispatchKeySet keys) {
  keys.included_ =
      keys.included_ | c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::DeferredInit});
  return keys;
}

class Interception::State {
 public:
  explicit State(Interceptor& interceptor)
      : saved_view_replay_(c10::AutogradState::get_tls_state().get_view_replay_enabled()),
        info_(kInstalled, std::make_shared<Installed>(interceptor, c10::impl::tls_local_dispatch_key_set())),
        keys_(with_ours(c10::impl::tls_local_dispatch_key_set())) {
    // Otherwise autograd writes through a view as `as_strided`, which cannot be sharded.
    c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
  }
  ~State() { c10::AutogradState::get_tls_state().set_view_replay_enabled(saved_view_replay_); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

 private:
  bool saved_view_replay_;
  c10::DebugInfoGuard info_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

Interception::Interception(Interceptor& interceptor) {
  SHOAL_CHECK(!installed(), InvalidInput, "capture: a capture is under way on this thread already");
  register_kernels();
  state_ = std::make_unique<State>(interceptor);
}

Interception::~Interception() = default;

}  // namespace shoal::capture
