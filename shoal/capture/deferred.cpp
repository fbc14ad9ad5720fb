// SPDX-License-Identifier: Apache-2.0
// What a constructor asks ATen for is asked of the Meta device, which knows shapes alone, and written on a
// tape (tape.h). What comes back says that it is on the CPU, and has no memory:
//
//   torch::empty({50257, 12288})     [50257, 12288] f32 on the CPU; call 0 makes storage 0
//   weight.normal_(0, 0.02)          call 1 writes it; the generator moves on
//   weight[3].zero_()                a view of the same storage, by ATen itself; call 2 writes it
//   weight.abs().max().item()        made for this, and let go of
//
// What the tape cannot say (another device, results whose shape depends on values) runs at once, on values.
#include "shoal/capture/deferred.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/aten/memory.h"
#include "shoal/aten/operators.h"
#include "shoal/aten/whole_draw.h"
#include "shoal/base/error.h"
#include "shoal/capture/operands.h"
#include "shoal/capture/random.h"
#include "shoal/capture/tape.h"

namespace shoal {

namespace capture {

namespace {

constexpr std::int64_t kSmall = 1024;  // elements

// Of a tensor without memory.
struct Origin final : aten::Origin {
  Origin(std::shared_ptr<Tape> from, std::size_t number) : tape(std::move(from)), storage(number) {}

  std::shared_ptr<Tape> tape;  // of all that were made together; null: of shapes alone
  std::size_t storage;
  mutable std::optional<Endless> endless;
};

const Origin* origin_of(const at::Tensor& tensor) {
  return dynamic_cast<const Origin*>(aten::origin_of(tensor));
}

Place place_of(const at::Tensor& tensor) {
  return {.storage = origin_of(tensor)->storage,
          .dtype = tensor.scalar_type(),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .offset = tensor.storage_offset()};
}

// As it is now, in memory that is nobody else's.
at::Tensor copy_of(const at::Tensor& tensor) {
  const Origin* origin = origin_of(tensor);
  if (origin == nullptr || origin->tape == nullptr) return tensor.clone();
  return tensor_at(place_of(tensor), origin->tape->made(origin->storage));
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_view(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::inplace_view)) return true;
  return std::ranges::any_of(op.schema().returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

class Deferring final : public Interceptor {
 public:
  explicit Deferring(Deferral::For what)
      : tape_(what == Deferral::For::Making ? std::make_shared<Tape>() : nullptr) {}

  // Those that draw are a factory and a draw over it.
  bool wants_factory(const c10::OperatorHandle& op) override {
    return op.schema().argumentIndexWithName("device").has_value() && !is_random(op);
  }

  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    if (is_view(op)) return op.callBoxed(stack);
    const c10::FunctionSchema& schema = op.schema();
    torch::jit::Stack in = popped(stack, schema.arguments().size());
    const auto written = written_by(schema, in);
    std::optional<torch::jit::Stack> results;
    if (const auto rows = endless_rows(op, in))
      results = deferred(op, in, Endless{.rows = *rows});
    else if (const auto endless = copied_endless(op, in))
      results = deferred(op, in, endless);
    else if (written.size() == 1 && is_ours(written[0]) && origin_of(written[0])->endless)
      results = begun(op, in, written[0]);
    else if (can_wait(op, in, written))
      results = written.empty() ? deferred(op, in) : write(op, in);
    if (!results) results = run(op, in, written);
    stack.insert(stack.end(), results->begin(), results->end());
  }

 private:
  using Tensors = std::vector<at::Tensor>;

  static Tensors written_by(const c10::FunctionSchema& schema, const torch::jit::Stack& in) {
    Tensors written;
    for (std::size_t i = 0; i < in.size(); ++i)
      if (is_written(schema.arguments()[i]))
        for_each_tensor(in[i], [&](const at::Tensor& tensor) { written.push_back(tensor); });
    return written;
  }

  bool is_ours(const at::Tensor& tensor) const {
    const Origin* origin = origin_of(tensor);
    return origin != nullptr && origin->tape == tape_;
  }

  bool can_wait(const c10::OperatorHandle& op, const torch::jit::Stack& in, const Tensors& written) const {
    const auto& results = op.schema().returns();
    return device_of(op.schema(), in).is_cpu() &&
           std::ranges::all_of(written, [&](const at::Tensor& tensor) { return is_ours(tensor); }) &&
           (!is_random(op) || aten::generator_argument(op.schema())) &&
           std::ranges::all_of(results, [&](const c10::Argument& result) {
             return written.empty() ? result.alias_info() == nullptr : result.alias_info() != nullptr;
           });
  }

  // Of a factory of a matrix that has more bytes than any memory: its rows, of which `in` says fewer from then on.
  std::optional<std::int64_t> endless_rows(const c10::OperatorHandle& op, torch::jit::Stack& in) {
    constexpr std::int64_t kMost = std::int64_t{1} << 60;  // bytes
    if (!wants_factory(op) || in.empty() || !in[0].isIntList()) return std::nullopt;
    auto sizes = in[0].toIntVector();
    if (sizes.size() != 2 || sizes[1] <= 0) return std::nullopt;
    const std::int64_t most = kMost / static_cast<std::int64_t>(sizeof(double)) / sizes[1];
    if (sizes[0] <= most) return std::nullopt;
    const std::int64_t rows = std::exchange(sizes[0], most);
    in[0] = sizes;
    return rows;
  }

  // Of a copy of one, in another type perhaps, what it is a copy of.
  std::optional<Endless> copied_endless(const c10::OperatorHandle& op, const torch::jit::Stack& in) const {
    const std::string& name = op.schema().name();
    if ((name != "aten::_to_copy" && name != "aten::clone") || !is_ours(in[0].toTensor()))
      return std::nullopt;
    return origin_of(in[0].toTensor())->endless;
  }

  // What an endless matrix begins with. A part of it is nobody's beginning: the row of a padding id, say.
  torch::jit::Stack begun(const c10::OperatorHandle& op, const torch::jit::Stack& in, const at::Tensor& all) {
    Endless& endless = *origin_of(all)->endless;
    const bool is_all = all.dim() == 2 && all.storage_offset() == 0 && all.is_contiguous() &&
                        static_cast<std::size_t>(all.numel()) * all.element_size() == all.storage().nbytes();
    if (!is_all) return {in[0]};
    const std::string name = op.schema().name();
    const auto number = [&](std::size_t at) { return in.at(at).toScalar().toDouble(); };
    using enum Endless::Begin;
    if (name == "aten::zero_")
      std::tie(endless.begin, endless.first, endless.second) = std::tuple(Constant, 0.0, 0.0);
    else if (name == "aten::fill_" && in.at(1).isScalar())
      std::tie(endless.begin, endless.first, endless.second) = std::tuple(Constant, number(1), 0.0);
    else if (name == "aten::uniform_" || name == "aten::normal_")
      std::tie(endless.begin, endless.first, endless.second) =
          std::tuple(name == "aten::normal_" ? Normal : Uniform, number(1), number(2));
    else
      endless.begin = Unknown;
    return {in[0]};
  }

  // A call that writes over what is deferred returns it.
  torch::jit::Stack write(const c10::OperatorHandle& op, const torch::jit::Stack& in) {
    const c10::FunctionSchema& schema = op.schema();
    record(op, in, {});
    torch::jit::Stack results;
    for (const c10::Argument& result : schema.returns())
      for (std::size_t i = 0; i < in.size(); ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        if (alias == nullptr || alias->beforeSets() != result.alias_info()->beforeSets()) continue;
        results.push_back(in[i]);
        break;
      }
    return results;
  }

  // What the call makes, without memory; nothing where Meta does not know what that is, or it is so little
  // that it is made at once.
  std::optional<torch::jit::Stack> deferred(const c10::OperatorHandle& op, const torch::jit::Stack& in,
                                            const std::optional<Endless>& endless = {}) {
    auto results = on_meta(op, in);
    if (!results || results->empty()) return std::nullopt;
    bool is_small = true, is_plain = true;
    for (const c10::IValue& argument : in)
      for_each_tensor(argument,
                      [&](const at::Tensor& tensor) { is_small = is_small && aten::has_memory(tensor); });
    for (const c10::IValue& result : *results) {
      is_plain = is_plain && (result.isTensor() || result.isTensorList());
      for_each_tensor(result, [&](const at::Tensor& tensor) {
        is_small = is_small && tensor.numel() <= kSmall;
        is_plain = is_plain && tensor.layout() == at::kStrided && tensor.is_meta();
      });
    }
    if (is_small || !is_plain) return std::nullopt;
    std::vector<Place> made;
    for (c10::IValue& result : *results)
      result = with_tensors(result, [&](const at::Tensor& meta) {
        const at::Tensor tensor = without_memory(meta);
        origin_of(tensor)->endless = endless;
        made.push_back(place_of(tensor));
        return tensor;
      });
    if (!endless) record(op, in, std::move(made));
    return results;
  }

  static std::optional<torch::jit::Stack> on_meta(const c10::OperatorHandle& op, torch::jit::Stack stack) {
    for (c10::IValue& value : stack) value = with_tensors(value, meta_of);
    if (const auto device = op.schema().argumentIndexWithName("device"))
      stack[static_cast<std::size_t>(*device)] = c10::Device(c10::kMeta);
    try {
      op.callBoxed(stack);
    } catch (const std::exception&) {  // of ATen or Python: a shape or number that depends on values
      return std::nullopt;
    }
    return stack;
  }

  at::Tensor without_memory(const at::Tensor& meta) {
    const std::size_t bytes =
        at::detail::computeStorageNbytes(meta.sizes(), meta.strides(), meta.element_size());
    return aten::empty_without_memory(
        meta.sizes(), meta.strides(), at::TensorOptions(meta.dtype()),
        tape_ == nullptr
            ? "this tensor is of a model of shapes alone, which has no values"
            : "this tensor has no data yet: it was made under deferred_init. Remedy: give its model to a "
              "Trainer, or call shoal's materialize() of the model, or of the tensor, first",
        std::make_unique<Origin>(tape_, tape_ == nullptr ? 0 : tape_->add_storage(bytes)));
  }

  void record(const c10::OperatorHandle& op, const torch::jit::Stack& in, std::vector<Place> made) {
    if (tape_ == nullptr) return;
    Call call{.op = op, .made = std::move(made)};
    for (const at::Tensor& tensor : written_by(op.schema(), in))
      call.writes.push_back(origin_of(tensor)->storage);
    for (const c10::IValue& argument : in)
      call.arguments.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
        if (is_ours(tensor))
          call.tensors.emplace_back(place_of(tensor), at::Tensor());
        else
          call.tensors.emplace_back(std::nullopt, kept(tensor));
        return hole_;
      }));
    if (is_random(op)) call.generator = draw(op, in);
    tape_->add(std::move(call));
  }

  // Of another's tensor, which may be another one later.
  static at::Tensor kept(const at::Tensor& tensor) {
    at::Tensor copy = copy_of(tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
      copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copy;
  }

  // Moves the generator on as the call would; as it was before.
  static at::Generator draw(const c10::OperatorHandle& op, torch::jit::Stack in) {
    const auto& arguments = op.schema().arguments();
    const c10::IValue& given = in[*aten::generator_argument(op.schema())];
    const at::Generator before =
        (given.isNone() ? at::globalContext().defaultGenerator(at::kCPU) : given.toGenerator()).clone();
    const bool reads = !overwrites(op.schema());
    for (std::size_t i = 0; i < in.size(); ++i)
      in[i] = with_tensors(in[i], [&](const at::Tensor& tensor) {
        if (reads || !is_written(arguments[i])) return copy_of(tensor);
        return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
      });
    op.callBoxed(in);
    return before;
  }

  // On values. What it writes gets its memory; what it reads, for this call.
  static torch::jit::Stack run(const c10::OperatorHandle& op, torch::jit::Stack in, const Tensors& written) {
    for (const at::Tensor& tensor : written) materialize(tensor);
    for (c10::IValue& value : in)
      value = with_tensors(value, [](const at::Tensor& tensor) {
        return aten::has_memory(tensor) ? tensor : copy_of(tensor);
      });
    op.callBoxed(in);
    return in;
  }

  std::shared_ptr<Tape> tape_;
  at::Tensor hole_ = at::empty({0});
};

}  // namespace

Deferral::Deferral(For what)
    : interceptor_(std::make_unique<Deferring>(what)), interception_(*interceptor_) {}

Deferral::~Deferral() = default;

}  // namespace capture

std::optional<Endless> endless_of(const at::Tensor& tensor) {
  return is_deferred(tensor) ? capture::origin_of(tensor)->endless : std::nullopt;
}

bool is_deferred(const at::Tensor& tensor) {
  return tensor.defined() && capture::origin_of(tensor) != nullptr;
}

void materialize(const at::Tensor& tensor, const std::string& name) {
  if (!is_deferred(tensor)) return;
  const auto* origin = capture::origin_of(tensor);
  SHOAL_CHECK(
      !origin->endless, InvalidInput, name, " has ", origin->endless->rows,
      " rows, and no memory has room for them. Remedy: a table has its rows (TrainerOptions::tables)");
  SHOAL_CHECK(origin->tape != nullptr, InvalidInput, name,
              " is of a model of shapes alone, and nothing says how it is made");
  aten::give_memory(tensor, origin->tape->made(origin->storage));
}

void materialize(torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) materialize(item.value(), item.key());
  for (const auto& item : module.named_buffers()) materialize(item.value(), item.key());
}

}  // namespace shoal
