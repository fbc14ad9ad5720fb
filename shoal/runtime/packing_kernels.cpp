// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/packing_kernels.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/comm/reduce.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/collective_kernels.h"
#include "shoal/runtime/redistribution.h"
#include "shoal/runtime/typed_kernel.h"
#include "shoal/sharding/collective.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;
using sharding::Range;
using sharding::Shape;
using sharding::Shard;

static const std::vector<std::int64_t>& numbers_of(const Compute& compute, std::string_view name) {
  const auto* numbers = std::get_if<std::vector<std::int64_t>>(&argument_of(compute, name));
  SHOAL_CHECK(numbers != nullptr, InvalidInput, compute.op, ": argument ", name,
              " is not a list of integers");
  return *numbers;
}

static std::int64_t product(Shape::const_iterator begin, Shape::const_iterator end) {
  return std::accumulate(begin, end, std::int64_t{1}, std::multiplies<>());
}
static std::int64_t product(const Shape& shape) { return product(shape.begin(), shape.end()); }

static at::Tensor flat_view(const at::Tensor& flat, std::int64_t begin, const Shape& shape) {
  return flat.narrow(0, begin, product(shape)).view(shape);
}

// Of none there may be no memory.
static void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
static std::byte* bytes_at(const at::Tensor& tensor, std::int64_t element) {
  return static_cast<std::byte*>(tensor.data_ptr()) + element * tensor.element_size();
}
static bool is_plain(const at::Tensor& tensor) { return tensor.is_cpu() && tensor.is_contiguous(); }

static at::Tensor new_tensor(const Shape& shape, const at::Tensor& like) {
  return at::empty(shape, like.options());
}

// The one output's type.
static const Shape& shape_of(const Program& program, const Compute& compute, std::size_t output = 0) {
  SHOAL_CHECK(output < compute.outputs.size() && compute.outputs[output], InvalidInput, compute.op,
              ": output ", output, " is undefined");
  return program.types.at(compute.outputs[output]->index).shape;
}

namespace {

// A part of one tensor, and where it is packed.
struct PackedPart {
  std::size_t tensor = 0;
  std::int64_t begin = 0;  // in what is packed
  Shape shape;
  std::int64_t dim = 0;
  std::vector<Range> ranges;  // of the dim
  // Where its elements lie one after the other in a tensor without gaps: from this one on. Else -1.
  std::int64_t first = -1;
};

// None where parts are alike.
std::vector<std::int64_t> weights_in(const Compute& compute) {
  for (const auto& argument : compute.arguments)
    if (argument.name == "weights") return numbers_of(compute, "weights");
  return {};
}

// The parts of each rank, by rank, of tensors of these shapes.
std::vector<PackedPart> pieces_of(const Compute& compute, const std::vector<Shape>& wholes) {
  const auto &dims = numbers_of(compute, "dims"), &outers = numbers_of(compute, "outers"),
             &units = numbers_of(compute, "units");
  const auto count = static_cast<int>(integer_of(compute, "count"));
  SHOAL_CHECK(dims.size() == wholes.size() && outers.size() == dims.size() && units.size() == dims.size(),
              InvalidInput, compute.op, ": dims, outers and units are not one for each of ", wholes.size(),
              " tensors");
  const auto weights = weights_in(compute);
  SHOAL_CHECK(weights.empty() || weights.size() == dims.size() * static_cast<std::size_t>(count),
              InvalidInput, compute.op, ": ", weights.size(), " weights for ", dims.size(), " tensors on ",
              count, " ranks");
  std::vector<PackedPart> pieces;
  std::int64_t begin = 0;
  for (int rank = 0; rank < count; ++rank)
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      const Shard shard{.dim = static_cast<int>(dims[i]),
                        .outer = outers[i],
                        .unit = units[i],
                        .weights = sharding::weights_at(weights, i, dims.size())};
      const auto dim = static_cast<std::size_t>(shard.dim);
      PackedPart piece = {.tensor = i, .begin = begin, .shape = wholes[i], .dim = dims[i]};
      piece.ranges = part_ranges(shard, wholes[i].at(dim), rank, count);
      piece.shape[dim] = part_size(shard, wholes[i][dim], rank, count);
      const auto at_dim = wholes[i].begin() + shard.dim;
      if (piece.ranges.empty())
        piece.first = 0;
      else if (shard.outer == 1 && product(wholes[i].begin(), at_dim) == 1)
        piece.first = piece.ranges[0].begin * product(at_dim + 1, wholes[i].end());
      begin += product(piece.shape);
      pieces.push_back(std::move(piece));
    }
  return pieces;
}

// Calls copy(piece of the tensor, its place in what is packed) for all that the piece consists of.
template <class Copy>
void for_each_range(const PackedPart& piece, const at::Tensor& whole, const at::Tensor& flat,
                    const Copy& copy) {
  const at::Tensor part = flat_view(flat, piece.begin, piece.shape);
  std::int64_t begin = 0;
  for (const Range& range : piece.ranges) {
    const std::int64_t length = range.end - range.begin;
    copy(whole.narrow(piece.dim, range.begin, length), part.narrow(piece.dim, begin, length));
    begin += length;
  }
}

class Pack final : public Kernel {
 public:
  explicit Pack(const Program& program, const Compute& compute)
      : tensors_(slots_of(compute, "tensors")),
        copies_(integer_of(compute, "copies")),
        shape_(shape_of(program, compute)),
        outputs_(compute) {}

  void run(Slots& slots) override {
    const at::Tensor flat = new_tensor(shape_, slots[tensors_.front()]);
    std::int64_t begin = 0;
    for (const auto slot : tensors_) {
      const at::Tensor& tensor = slots[slot];
      if (is_plain(tensor))
        copy_bytes(bytes_at(flat, begin), tensor.const_data_ptr(),
                   static_cast<std::int64_t>(tensor.nbytes()));
      else
        flat_view(flat, begin, tensor.sizes().vec()).copy_(tensor);
      begin += tensor.numel();
    }
    for (std::int64_t copy = 1; copy < copies_; ++copy)
      flat.narrow(0, copy * begin, begin).copy_(flat.narrow(0, 0, begin));
    outputs_.put(slots, flat);
  }

 private:
  std::vector<std::uint32_t> tensors_;
  std::int64_t copies_;
  Shape shape_;
  Outputs outputs_;
};

class PackParts final : public Kernel {
 public:
  explicit PackParts(const Program& program, const Compute& compute)
      : tensors_(slots_of(compute, "tensors")), shape_(shape_of(program, compute)), outputs_(compute) {
    std::vector<Shape> wholes;
    for (const auto slot : tensors_) wholes.push_back(program.types.at(slot).shape);
    pieces_ = pieces_of(compute, wholes);
  }

  void run(Slots& slots) override {
    const at::Tensor flat = new_tensor(shape_, slots[tensors_.front()]);
    for (const PackedPart& piece : pieces_) {
      const at::Tensor& tensor = slots[tensors_[piece.tensor]];
      if (piece.first >= 0 && is_plain(tensor))
        copy_bytes(bytes_at(flat, piece.begin), bytes_at(tensor, piece.first),
                   product(piece.shape) * tensor.element_size());
      else
        for_each_range(piece, tensor, flat,
                       [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
    }
    outputs_.put(slots, flat);
  }

 private:
  std::vector<std::uint32_t> tensors_;
  Shape shape_;
  std::vector<PackedPart> pieces_;
  Outputs outputs_;
};

class Unpack final : public Kernel {
 public:
  explicit Unpack(const Program& program, const Compute& compute)
      : self_(slot_of(compute, "self")), outputs_(compute) {
    for (std::size_t i = 0; i < compute.outputs.size(); ++i) shapes_.push_back(shape_of(program, compute, i));
  }

  void run(Slots& slots) override {
    std::vector<at::Tensor> views;
    std::int64_t begin = 0;
    for (const Shape& shape : shapes_) {
      views.push_back(flat_view(slots[self_], begin, shape));
      begin += product(shape);
    }
    outputs_.put(slots, std::move(views));
  }

 private:
  std::uint32_t self_;
  std::vector<Shape> shapes_;
  Outputs outputs_;
};

// Parts to where they are in the whole: of new tensors, or of sources.
class UnpackParts final : public Kernel {
 public:
  UnpackParts(const Program& program, const Compute& compute, std::vector<std::uint32_t> over)
      : self_(slot_of(compute, "self")), over_(std::move(over)), outputs_(compute) {
    for (std::size_t i = 0; i < compute.outputs.size(); ++i) shapes_.push_back(shape_of(program, compute, i));
    pieces_ = pieces_of(compute, shapes_);
  }

  void run(Slots& slots) override {
    const at::Tensor flat = slots[self_];
    std::vector<at::Tensor> wholes;
    for (const auto slot : over_) wholes.push_back(slots[slot]);
    if (over_.empty())
      for (const Shape& shape : shapes_) wholes.push_back(new_tensor(shape, flat));
    for (const PackedPart& piece : pieces_) {
      const at::Tensor& whole = wholes[piece.tensor];
      if (piece.first >= 0 && is_plain(whole))
        copy_bytes(bytes_at(whole, piece.first), bytes_at(flat, piece.begin),
                   product(piece.shape) * flat.element_size());
      else
        for_each_range(piece, whole, flat,
                       [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
    }
    if (over_.empty()) outputs_.put(slots, std::move(wholes));
  }

 private:
  std::uint32_t self_;
  std::vector<std::uint32_t> over_;
  std::vector<Shape> shapes_;
  std::vector<PackedPart> pieces_;
  Outputs outputs_;
};

// Rows are combined in order, as a communicator does it.
class Combine final : public Kernel {
 public:
  Combine(const Program& program, const Compute& compute)
      : self_(slot_of(compute, "self")),
        count_(static_cast<std::size_t>(integer_of(compute, "count"))),
        op_(reduction_of(compute)),
        shape_(shape_of(program, compute)),
        outputs_(compute) {}

  void run(Slots& slots) override {
    const at::Tensor rows = as_numbers(slots[self_]);
    const at::Tensor made = new_tensor(shape_, slots[self_]);
    const at::Tensor numbers = as_numbers(made);
    std::vector<const std::byte*> from;
    for (std::size_t row = 0; row < count_; ++row)
      from.push_back(bytes_at(rows, static_cast<std::int64_t>(row) * made.numel()));
    std::byte* const to[] = {bytes_at(numbers, 0)};
    const comm::Reduction reduction = {
        .dtype = aten::from_torch(numbers.scalar_type()), .op = op_, .count = made.numel()};
    if (made.numel() > 0) comm::reduce(reduction, from, to);
    outputs_.put(slots, made);
  }

 private:
  std::uint32_t self_;
  std::size_t count_;
  comm::ReduceOp op_;
  Shape shape_;
  Outputs outputs_;
};

class Part final : public Kernel {
 public:
  explicit Part(const Compute& compute)
      : self_(slot_of(compute, "self")),
        shard_{.dim = static_cast<int>(integer_of(compute, "dim")),
               .outer = integer_of(compute, "outer"),
               .unit = integer_of(compute, "unit"),
               .weights = weights_in(compute)},
        index_(static_cast<int>(integer_of(compute, "index"))),
        count_(static_cast<int>(integer_of(compute, "count"))),
        outputs_(compute) {}

  // Contiguous: what comes after may be a view that only a gapless tensor has.
  void run(Slots& slots) override {
    outputs_.put(slots, part_of(slots[self_], shard_, index_, count_).contiguous());
  }

 private:
  std::uint32_t self_;
  Shard shard_;
  int index_, count_;
  Outputs outputs_;
};

}  // namespace

std::unique_ptr<Kernel> make_pack(const Program& program, const Compute& compute) {
  return std::make_unique<Pack>(program, compute);
}
std::unique_ptr<Kernel> make_pack_parts(const Program& program, const Compute& compute) {
  return std::make_unique<PackParts>(program, compute);
}
std::unique_ptr<Kernel> make_unpack(const Program& program, const Compute& compute) {
  return std::make_unique<Unpack>(program, compute);
}
std::unique_ptr<Kernel> make_unpack_parts(const Program& program, const Compute& compute) {
  return std::make_unique<UnpackParts>(program, compute, std::vector<std::uint32_t>{});
}
std::unique_ptr<Kernel> make_unpack_into(const Program& program, const Compute& compute) {
  return std::make_unique<UnpackParts>(program, compute, slots_of(compute, "wholes"));
}
std::unique_ptr<Kernel> make_combine(const Program& program, const Compute& compute) {
  return std::make_unique<Combine>(program, compute);
}
std::unique_ptr<Kernel> make_part(const Program&, const Compute& compute) {
  return std::make_unique<Part>(compute);
}

}  // namespace shoal::runtime
