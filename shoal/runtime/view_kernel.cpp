// SPDX-License-Identifier: Apache-2.0
// A view is (offset from its base, sizes, strides). ATen computes these from the arguments at each call,
// which costs more than making the tensor; half of a transformer's instructions are views.
#include "shoal/runtime/view_kernel.h"

#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "shoal/runtime/typed_kernel.h"

namespace shoal::runtime {

namespace {

class ViewKernel final : public Kernel {
 public:
  ViewKernel(std::uint32_t base, bool lasting, std::vector<std::uint32_t> outputs,
             std::unique_ptr<Kernel> kernel)
      : base_(base), lasting_(lasting), outputs_(std::move(outputs)), kernel_(std::move(kernel)) {}

  void run(Slots& slots) override {
    const at::Tensor& base = slots[base_];
    if (learned_ && base.strides() == base_strides_) {
      if (lasting_ && made_of_.is_same(base) && made_of_data_ == base.const_data_ptr())
        return hand_out(slots);
      for (std::size_t i = 0; i < outputs_.size(); ++i)
        if (outputs_[i] != kNoSlot) slots[outputs_[i]] = view_of(base, views_[i]);
      if (lasting_) keep(slots, base);
      return;
    }
    kernel_->run(slots);
    learn(slots);
  }

 private:
  struct View {
    std::int64_t offset = 0;  // from the base's
    c10::SmallVector<std::int64_t, 5> sizes;
    c10::SmallVector<std::int64_t, 5> strides;
  };

  static at::Tensor view_of(const at::Tensor& base, const View& view) {
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                     base.key_set(), base.dtype());
    impl->set_sizes_and_strides(view.sizes, view.strides, base.storage_offset() + view.offset);
    return at::Tensor(std::move(impl));
  }

  void learn(const Slots& slots) {
    const at::Tensor& base = slots[base_];
    views_.clear();
    learned_ = true;
    base_strides_ = base.strides().vec();
    for (const auto output : outputs_) {
      auto& view = views_.emplace_back();
      if (output == kNoSlot) continue;
      const at::Tensor& made = slots[output];
      learned_ = learned_ && made.defined() && made.is_alias_of(base) &&
                 made.scalar_type() == base.scalar_type() && made.key_set() == base.key_set();
      if (!learned_) return;
      view.offset = made.storage_offset() - base.storage_offset();
      view.sizes.assign(made.sizes().begin(), made.sizes().end());
      view.strides.assign(made.strides().begin(), made.strides().end());
    }
  }

  // Views of a parameter are the same at every step: they are made once and handed out again.
  void keep(const Slots& slots, const at::Tensor& base) {
    made_of_ = base;
    made_of_data_ = base.const_data_ptr();
    kept_.clear();
    for (const auto output : outputs_) kept_.push_back(tensor_in(slots, output));
  }
  void hand_out(Slots& slots) const {
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      if (outputs_[i] != kNoSlot) slots[outputs_[i]] = kept_[i];
  }

  std::uint32_t base_;
  bool lasting_;  // the base is a source that stays bound
  std::vector<std::uint32_t> outputs_;
  std::unique_ptr<Kernel> kernel_;
  bool learned_ = false;
  std::vector<std::int64_t> base_strides_;
  std::vector<View> views_;
  at::Tensor made_of_;
  const void* made_of_data_ = nullptr;
  std::vector<at::Tensor> kept_;
};

}  // namespace

std::unique_ptr<Kernel> make_view(const program::Program& program, const program::Compute& compute,
                                  std::unique_ptr<Kernel> kernel) {
  std::uint32_t base = kNoSlot;
  for (const auto& argument : compute.arguments)
    if (base == kNoSlot) base = slot_in(argument.value);
  if (base == kNoSlot) return kernel;
  bool lasting = false;
  for (const auto& source : program.sources)
    if (source.slot.index == base)
      lasting = source.role == ir::Role::Parameter || source.role == ir::Role::Buffer ||
                source.role == ir::Role::Constant;
  std::vector<std::uint32_t> outputs;
  for (const auto& output : compute.outputs) outputs.push_back(output ? output->index : kNoSlot);
  return std::make_unique<ViewKernel>(base, lasting, std::move(outputs), std::move(kernel));
}

}  // namespace shoal::runtime
