// SPDX-License-Identifier: Apache-2.0
// Above 400 lines: a table of statements.
#include "tests/oracle/random_modules.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/nn/module.h>

#include <sstream>
#include <utility>

namespace random_modules {

using at::indexing::Slice;

// Of every dim, so that tensors often fit together.
static constexpr std::array<std::int64_t, 4> kSizes = {2, 3, 4, 6};
static constexpr std::int64_t kMostElements = 300;

RandomModule::RandomModule(std::uint64_t seed) {
  torch::manual_seed(seed);
  for (const auto size : kSizes) {
    const auto name = std::to_string(size);
    matrices[size] = register_parameter("matrix_" + name, at::randn({size, size}, at::kDouble));
    register_parameter("tied_" + name, matrices[size]);
    vectors[size] = register_parameter("vector_" + name, at::randn({size}, at::kDouble));
    means[size] = register_buffer("mean_" + name, at::zeros({size}, at::kDouble));
    variances[size] = register_buffer("variance_" + name, at::ones({size}, at::kDouble));
    averages[size] = register_buffer("average_" + name, at::randn({size}, at::kDouble));
  }
  cache = register_buffer("cache", at::randn({4, 6}, at::kDouble));
  count = register_buffer("count", at::zeros({}, at::kLong));
  earlier = {matrices[4].detach().t(),
             matrices[6].data().slice(0, 1, 5),
             matrices[3].detach()[1],
             matrices[6].detach().t(),
             matrices[2].data().view({4}),
             averages[6].view({2, 3}),
             cache.t(),
             cache.slice(1, 1, 5, 2)};
}

namespace {

class Choices {
 public:
  explicit Choices(const Statement& statement) : statement_(statement) {}
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(statement_.numbers[next_++ % statement_.numbers.size()] %
                                     static_cast<std::uint64_t>(end));
  }
  bool coin() { return below(2) == 1; }
  double number() { return 0.25 * static_cast<double>(1 + below(6)) * (coin() ? 1 : -1); }

 private:
  const Statement& statement_;
  std::size_t next_ = 0;
};

// What the statements of one run read and write.
struct Pool {
  RandomModule& module;
  Tensor index, mask;
  std::vector<Tensor> inputs;
  std::vector<Tensor> tensors;  // of doubles; a statement adds what it makes
  std::size_t num_given = 0;    // the first ones; the loss reads those that are made

  Tensor pick(Choices& choose, std::int64_t min_dim = 0) const {
    return pick_that(choose, [&](const Tensor& tensor) { return tensor.dim() >= min_dim; });
  }
  template <class Fits>
  Tensor pick_that(Choices& choose, const Fits& fits) const {
    std::vector<std::size_t> fitting;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (fits(tensors[i])) fitting.push_back(i);
    if (fitting.empty()) throw Inapplicable();
    return tensors[fitting[static_cast<std::size_t>(
        choose.below(static_cast<std::int64_t>(fitting.size())))]];
  }
  // One that broadcasts to the shape of `to`.
  Tensor pick_for(Choices& choose, const Tensor& to) const {
    return pick_that(choose,
                     [&](const Tensor& tensor) { return at::is_expandable_to(tensor.sizes(), to.sizes()); });
  }
  void add(const Tensor& tensor) {
    if (tensor.numel() == 0 || tensor.numel() > kMostElements || tensor.dim() > 4) throw Inapplicable();
    tensors.push_back(tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kDouble));
  }
};

}  // namespace

// ---- pieces of statements
// --------------------------------------------------------------------------------------------

static std::int64_t dim_of(const Tensor& tensor, Choices& choose) {
  if (tensor.dim() == 0) throw Inapplicable();
  return choose.below(tensor.dim());
}

// A parameter or buffer of this size.
static Tensor of_size(const std::map<std::int64_t, Tensor>& tensors, std::int64_t size) {
  const auto found = tensors.find(size);
  if (found == tensors.end()) throw Inapplicable();
  return found->second;
}

static Tensor unary(const Tensor& x, Choices& choose) {
  switch (choose.below(16)) {
    case 0: return x.relu();
    case 1: return x.sigmoid();
    case 2: return at::gelu(x);
    case 3: return at::silu(x);
    case 4: return at::softplus(x);
    case 5: return x.sin() + x.cos();
    case 6: return x.tanh().exp();
    case 7: return x.abs().log1p();
    case 8: return (x.square() + 1).rsqrt();
    case 9: return at::leaky_relu(x, 0.1);
    case 10: return at::elu(x);
    case 11: return x.clamp(-1, 1);
    case 12: return -x * choose.number();
    case 13: return 1 / (x.pow(2) + 2);
    case 14: return at::gelu(x, "tanh");
    default: return x.tanh();
  }
}

static Tensor binary(const Tensor& a, const Tensor& b, Choices& choose) {
  switch (choose.below(9)) {
    case 0: return at::add(a, b, choose.number());
    case 1: return a - b;
    case 2: return a * b.tanh();
    case 3: return a / (b * b + 1);
    case 4: return at::maximum(a, b);
    case 5: return at::where(a > b, a, b);
    case 6: return at::addcmul(a, b, b.sigmoid(), choose.number());
    case 7: return at::lerp(a, b.expand(a.sizes()), 0.3);
    default: return a * b;
  }
}

// Any view of a tensor, one step.
static Tensor view(const Tensor& x, Choices& choose) {
  const auto kind = choose.below(18);
  const auto dim = dim_of(x, choose);
  const auto size = x.size(dim);
  const auto other = choose.below(x.dim());
  switch (kind) {
    case 0: return x.transpose(dim, other);
    case 1: {
      std::vector<std::int64_t> dims;
      for (std::int64_t i = 0; i < x.dim(); ++i) dims.push_back((i + dim) % x.dim());
      return x.permute(dims);
    }
    case 2: return x.select(dim, choose.below(size));
    case 3: return x.slice(dim, choose.below(size), size);
    case 4: return x.slice(dim, choose.below(size), size, 2);
    case 5: return x.narrow(dim, 0, 1 + choose.below(size));
    case 6: return x.unsqueeze(dim);
    case 7: return x.squeeze(dim);
    case 8: return x.split(1 + choose.below(size), dim)[0];
    case 9: return x.chunk(2, dim).back();
    case 10: return x.unbind(dim)[static_cast<std::size_t>(choose.below(size))];
    case 11: return x.view({-1});
    case 12: return x.flatten(std::min(dim, other), std::max(dim, other));
    case 13: return x.view({x.numel() % 2 == 0 ? 2 : 1, -1});
    case 14: return x.dim() < 2 ? x.view_as(x) : x.diagonal(0, 0, 1 + choose.below(x.dim() - 1));
    case 15: return x.index({Slice(), at::indexing::Ellipsis});
    case 16: return x.movedim(dim, other);
    default: return x.index({at::indexing::None, choose.below(x.size(0))});
  }
}

static Tensor views(Tensor x, Choices& choose) {
  for (auto steps = 1 + choose.below(3); steps > 0 && x.dim() > 0; --steps) x = view(x, choose);
  return x;
}

static void write(Tensor to, const Tensor& from, Choices& choose) {
  const Tensor source = from.clone();  // where memory overlaps in part, eager's result is undefined
  switch (choose.below(12)) {
    case 0: to.copy_(source); return;
    case 1: to.add_(source, choose.number()); return;
    case 2: to.mul_(source); return;
    case 3: to.sub_(source).mul_(0.5); return;
    case 4: to.zero_(); return;
    case 5: to.fill_(choose.number()); return;
    case 6: to.add_(choose.number()); return;
    case 7: to.addcmul_(source, source, 0.5); return;
    case 8: to.masked_fill_(source.detach() > 0, choose.number()); return;
    case 9: to.lerp_(source.expand(to.sizes()), 0.25); return;
    case 10: to.clamp_(-1, 1); return;
    default: to.mul_(choose.number()).tanh_(); return;
  }
}

// A new tensor that may be written to: autograd keeps nothing of it yet.
static Tensor fresh(const Tensor& x, Choices& choose) {
  switch (choose.below(5)) {
    case 0: return x.clone();
    case 1: return x * 1.5;
    case 2: return x.t().contiguous().t();
    case 3: return at::empty_like(x).copy_(x);
    default: return x + 0.5;
  }
}

static Tensor indices(const Pool& pool, std::int64_t below) { return pool.index.remainder(below); }

// ---- statements
// ------------------------------------------------------------------------------------------------------

static void activate(Pool& pool, Choices& choose) { pool.add(unary(pool.pick(choose), choose)); }

static void activate_in_place(Pool& pool, Choices& choose) {
  Tensor x = choose.coin() ? pool.pick(choose) : fresh(pool.pick(choose), choose);
  switch (choose.below(8)) {
    case 0: x.relu_(); break;
    case 1: x.tanh_(); break;
    case 2: x.sigmoid_(); break;
    case 3: x.neg_(); break;
    case 4: at::silu_(x); break;
    case 5: at::leaky_relu_(x, 0.2); break;
    case 6: at::elu_(x); break;
    default: x.clamp_min_(0).exp_(); break;
  }
  pool.add(x);
}

static void combine(Pool& pool, Choices& choose) {
  const Tensor a = pool.pick(choose);
  pool.add(binary(a, pool.pick_for(choose, a), choose));
}

static void write_in_place(Pool& pool, Choices& choose) {
  const Tensor a = pool.pick(choose);
  write(a, pool.pick_for(choose, a), choose);
}

static void take_view(Pool& pool, Choices& choose) { pool.add(views(pool.pick(choose, 1), choose)); }

static void take_alias(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose);
  switch (choose.below(4)) {
    case 0: pool.add(x.detach()); return;
    case 1: pool.add(x.data()); return;
    case 2: pool.add(x.expand({2}, true)); return;
    default:
      pool.add(x.unsqueeze(0).expand([&] {
        auto sizes = x.sizes().vec();
        sizes.insert(sizes.begin(), 3);
        return sizes;
      }()));
  }
}

static void write_through_view(Pool& pool, Choices& choose) {
  Tensor base = choose.below(3) == 0 ? pool.pick(choose, 1) : fresh(pool.pick(choose, 1), choose);
  const Tensor other_view = views(base, choose);
  const Tensor part = views(base, choose);
  write(part, pool.pick_for(choose, part), choose);
  pool.add(base);
  pool.add(choose.coin() ? other_view : part);
}

static void write_through_pieces(Pool& pool, Choices& choose) {
  const Tensor base = fresh(pool.pick(choose, 1), choose);
  const auto dim = dim_of(base, choose);
  const auto pieces = choose.coin() ? base.chunk(2, dim) : base.unbind(dim);
  // Autograd forbids writing to one of several outputs that are views, but not without autograd.
  {
    const at::NoGradGuard no_grad;
    for (const auto& piece : base.detach().split(1, dim)) Tensor(piece).mul_(choose.number());
  }
  pool.add(pieces.back());
  pool.add(base);
}

static void reduce(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose, 1);
  const auto dim = dim_of(x, choose);
  const bool keep = choose.coin();
  switch (choose.below(16)) {
    case 0: return pool.add(x.sum(dim, keep));
    case 1: return pool.add(x.mean(dim, keep));
    case 2: return pool.add(x.amax(dim, keep));
    case 3: return pool.add(std::get<0>(x.max(dim, keep)));
    case 4: return pool.add(x.size(dim) < 2 ? x.sum() : x.var(dim, true, keep));
    case 5: return pool.add(x.logsumexp(dim, keep));
    case 6: return pool.add(x.cumsum(dim));
    case 7: return pool.add(x.sum());
    case 8: return pool.add(x.norm(2, dim, keep));
    case 9: return pool.add(std::get<0>(x.sort(dim, true)));
    case 10: return pool.add(std::get<0>(x.topk(1, dim)));
    case 11: return pool.add(x.std(dim, false, keep));
    case 12: return pool.add(x.argmax(dim, keep));
    case 13: return pool.add(std::get<0>(x.min(dim, keep)));
    case 14: return pool.add(x.flatten().dot(x.flatten()));
    default: return pool.add(x.mean());
  }
}

static void index_tensor(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose, 1);
  const auto dim = dim_of(x, choose);
  const Tensor index = indices(pool, x.size(dim));
  switch (choose.below(8)) {
    case 0: return pool.add(x.index_select(dim, index));
    case 1: return pool.add(x.index({indices(pool, x.size(0))}));
    case 2:
      return pool.add(x.gather(dim, x.detach()
                                        .sigmoid()
                                        .mul(static_cast<double>(x.size(dim)))
                                        .to(at::kLong)
                                        .clamp_max(x.size(dim) - 1)));
    case 3: return pool.add(at::embedding(of_size(pool.module.matrices, 6), indices(pool, 6)));
    case 4: return pool.add(x.take_along_dim(at::argsort(x.detach(), dim), dim));
    case 5: return pool.add(x.take(indices(pool, x.numel())));
    case 6:
      return pool.add(x.dim() < 2 ? x.index({index.unsqueeze(1)})
                                  : x.index({indices(pool, x.size(0)), indices(pool, x.size(1))}));
    default: return pool.add(x.index({Slice(0, at::indexing::None, 2)}));
  }
}

static void index_input_by_mask(Pool& pool, Choices& choose) {
  const Tensor x =
      pool.inputs[static_cast<std::size_t>(choose.below(static_cast<std::int64_t>(pool.inputs.size())))];
  const Tensor mask = x.size(0) == pool.mask.size(0) && choose.coin() ? pool.mask : x > 0.2;
  switch (choose.below(3)) {
    case 0: return pool.add(x.index({mask}));
    case 1: return pool.add(mask.dim() == x.dim() ? x.masked_select(mask) : x.index({mask}).sum(0));
    default: return pool.add(mask.nonzero());
  }
}

static void write_by_index(Pool& pool, Choices& choose) {
  const Tensor base = fresh(pool.pick(choose, 1), choose);
  Tensor x = choose.coin() ? base : views(base, choose);
  const auto dim = dim_of(x, choose);
  const auto size = x.size(dim);
  const Tensor index = indices(pool, size);
  const Tensor rows =
      x.detach().index_select(dim, index) *
      pool.pick_that(choose, [](const Tensor& t) { return t.dim() == 0 || t.numel() == 1; }).reshape({});
  switch (choose.below(10)) {
    case 0:
      x.index_put_({indices(pool, x.size(0))}, x.detach().index({indices(pool, x.size(0))}) * 2, true);
      break;
    case 1:
      x.index_put_({index.slice(0, 0, 1).remainder(x.size(0))}, at::scalar_tensor(0.5, at::kDouble));
      break;
    case 2: x.index_add_(dim, index, rows, 0.5); break;
    case 3: x.index_fill_(dim, index, choose.number()); break;
    case 4: x.index_copy_(dim, index.slice(0, 0, 1), rows.slice(dim, 0, 1)); break;
    case 5: x.scatter_add_(dim, at::zeros_like(x, at::kLong), x.detach() * 0.5); break;
    case 6: x.index_put_({x.detach() > 0}, at::scalar_tensor(choose.number(), at::kDouble)); break;
    case 7: x.masked_fill_(x.detach() > 0.5, choose.number()); break;
    case 8:
      x.scatter_(dim,
                 index.slice(0, 0, 1).view(std::vector<std::int64_t>(static_cast<std::size_t>(x.dim()), 1)),
                 choose.number());
      break;
    default:
      x.index_put_({choose.coin() ? Slice(1, 3) : Slice(), at::indexing::Ellipsis}, choose.number());
      break;
  }
  pool.add(base);
  pool.add(x);
}

static void normalise(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose, 1);
  const auto& module = pool.module;
  const auto last = x.size(-1);
  switch (choose.below(5)) {
    case 0:
      return pool.add(
          at::layer_norm(x, {last}, of_size(module.vectors, last), of_size(module.vectors, last)));
    case 1:
      return pool.add(at::layer_norm(x, {last}, choose.coin() ? of_size(module.vectors, last) : Tensor()));
    case 2: {
      if (x.dim() < 2) throw Inapplicable();
      const auto channels = x.size(1);
      return pool.add(at::batch_norm(x, of_size(module.vectors, channels),
                                     choose.coin() ? of_size(module.averages, channels) : Tensor(),
                                     of_size(module.means, channels), of_size(module.variances, channels),
                                     choose.below(4) != 0, 0.1, 1e-5, false));
    }
    case 3: {
      if (x.dim() < 2) throw Inapplicable();
      const auto channels = x.size(1);
      return pool.add(at::group_norm(x, channels % 2 == 0 ? 2 : 1, of_size(module.vectors, channels),
                                     of_size(module.vectors, channels)));
    }
    default: return pool.add(x / x.norm(2, -1, true).clamp_min(1e-3));
  }
}

static void multiply(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose, 1);
  const auto& module = pool.module;
  const auto last = x.size(-1);
  switch (choose.below(9)) {
    case 0: return pool.add(at::linear(x, of_size(module.matrices, last), of_size(module.vectors, last)));
    case 1: return pool.add(at::linear(x, of_size(module.matrices, last)));
    case 2: return pool.add(x.matmul(of_size(module.matrices, last)));
    case 3:
      return pool.add(x.matmul(
          pool.pick_that(choose, [&](const Tensor& t) { return t.dim() == 2 && t.size(0) == last; })));
    case 4:
      return pool.add(x.matmul(
          pool.pick_that(choose, [&](const Tensor& t) { return t.dim() == 1 && t.size(0) == last; })));
    case 5:
      return pool.add(at::addmm(of_size(module.vectors, last), x.reshape({-1, last}),
                                of_size(module.matrices, last), choose.number()));
    case 6:
      return pool.add(x.dim() == 3 ? at::bmm(x, x.transpose(1, 2))
                                   : at::outer(x.flatten(), of_size(module.vectors, last)));
    case 7: return pool.add(at::einsum("...i,ij->...j", {x, of_size(module.matrices, last)}));
    default:
      return pool.add(at::linear(at::linear(x, of_size(module.matrices, last)).relu(),
                                 of_size(module.matrices, last).t()));
  }
}

static void attend(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose, 1);
  const auto dim = dim_of(x, choose);
  const auto last = x.size(-1);
  switch (choose.below(6)) {
    case 0: return pool.add(x.softmax(dim));
    case 1: return pool.add(x.log_softmax(dim));
    case 2: {
      const Tensor rows = x.reshape({-1, last});
      return pool.add(at::cross_entropy_loss(
          rows, at::arange(rows.size(0), at::kLong).add(pool.index[0]).remainder(last)));
    }
    case 3: {
      const Tensor heads = x.reshape({1, 1, -1, last});
      return pool.add(
          at::scaled_dot_product_attention(heads, heads, heads * 0.5, {}, 0, choose.coin()).reshape_as(x));
    }
    case 4: {
      const Tensor heads = x.reshape({1, -1, last});
      return pool.add(
          at::scaled_dot_product_attention(heads, heads, heads,
                                           at::ones({heads.size(1), heads.size(1)}, at::kBool).tril(), 0.2)
              .reshape_as(x));
    }
    default: return pool.add(at::mse_loss(x, pool.pick_for(choose, x).expand(x.sizes())));
  }
}

static void write_buffer(Pool& pool, Choices& choose) {
  auto& module = pool.module;
  const at::NoGradGuard no_grad;
  switch (choose.below(7)) {
    case 0: module.count.add_(1); return;
    case 1: {
      const Tensor x = pool.pick(choose, 1).detach();
      Tensor average = of_size(module.averages, x.size(-1));
      average.mul_(0.9).add_(x.reshape({-1, x.size(-1)}).mean(0), 0.1);
      return;
    }
    case 2:
      module.cache.select(0, choose.below(4)).copy_(pool.pick_for(choose, module.cache[0]).detach());
      return;
    case 3: module.cache.slice(1, choose.below(3), 5).mul_(choose.number()); return;
    case 4: module.earlier[6].select(0, choose.below(6)).add_(choose.number()); return;
    case 5: module.earlier[7].copy_(pool.pick_for(choose, module.earlier[7]).detach()); return;
    default: module.cache.copy_(module.cache.roll(1, 0)); return;
  }
}

static void read_buffer(Pool& pool, Choices& choose) {
  auto& module = pool.module;
  const auto size = kSizes[static_cast<std::size_t>(choose.below(kSizes.size()))];
  switch (choose.below(5)) {
    case 0: return pool.add(module.cache * module.vectors[6]);
    case 1: return pool.add(module.averages[size] - module.vectors[size]);
    case 2: return pool.add(module.count.to(at::kDouble) * module.vectors[size]);
    case 3: return pool.add(module.means[size] + module.variances[size] * module.vectors[size]);
    default:
      return pool.add(module.earlier[static_cast<std::size_t>(
                          choose.below(static_cast<std::int64_t>(module.earlier.size())))] *
                      2);
  }
}

// A constant that values are written into, or that meets them.
static void fill_constant(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose, 1);
  const auto dim = dim_of(x, choose);
  auto sizes = x.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] += 2;
  switch (choose.below(8)) {
    case 0: {
      const Tensor y = at::zeros(sizes, x.options());
      const Tensor alias = y.transpose(0, dim);
      y.narrow(dim, choose.below(3), x.size(dim)).copy_(x);
      pool.add(y);
      return pool.add(alias);
    }
    case 1: {
      const Tensor y = at::full(sizes, choose.number(), x.options());
      y.narrow(dim, 1, x.size(dim)).add_(x);
      y.select(dim, 0).mul_(2);
      return pool.add(y);
    }
    case 2: {
      const Tensor y = at::empty(sizes, x.options());
      y.narrow(dim, 0, 2).fill_(0.5);
      y.narrow(dim, 2, x.size(dim)).copy_(x.tanh());
      return pool.add(y);
    }
    case 3: {
      Tensor y = x.new_zeros(sizes);
      for (std::int64_t i = 0; i < x.size(dim); ++i) y.select(dim, i) += x.select(dim, i);
      return pool.add(y.view({-1}));
    }
    case 4: {
      const Tensor counter = at::zeros_like(x);
      const Tensor first = x + counter;
      counter.add_(5);
      return pool.add(first * counter);
    }
    case 5:
      return pool.add(x +
                      at::arange(x.size(-1), x.options()) * at::ones({x.size(-1)}, x.options()).cumsum(0));
    case 6: {
      Tensor y = at::ones({x.size(-1), x.size(-1)}, x.options()).tril();
      return pool.add(x.matmul(y).masked_fill(at::eye(x.size(-1), at::kBool)[0], 0.25));
    }
    default: {
      Tensor y = at::empty(x.sizes(), x.options());
      at::add_out(y, x.detach(), x.detach(), 2);
      return pool.add(x * y);
    }
  }
}

static void join(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose, 1);
  const auto dim = dim_of(x, choose);
  const Tensor y = pool.pick_for(choose, x).expand(x.sizes());
  switch (choose.below(11)) {
    case 0: return pool.add(at::cat({x, y, x.narrow(dim, 0, 1)}, dim));
    case 1: return pool.add(at::stack({x, y}, dim));
    case 2: return pool.add(at::where(x > 0, x, y));
    case 3: return pool.add(at::cat({at::zeros_like(x), x}, dim));
    case 4: return pool.add(x.roll(1, dim) + y.flip(dim));
    case 5: return pool.add(x.repeat_interleave(2, dim));
    case 6: return pool.add(at::constant_pad_nd(x, {1, 2}, 0.5));
    case 7: return pool.add(x.dim() < 2 ? x * y : x.tril() + y.triu(1));
    case 8: return pool.add(at::cat(x.split(2, dim), x.dim() - 1));
    case 9:
      return pool.add(at::where(x.new_ones(x.sizes()).tril_() > 0, x, at::scalar_tensor(0.5, at::kDouble)));
    default: return pool.add(x.unsqueeze(-1) * y.unsqueeze(-2));
  }
}

static void cast(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose);
  switch (choose.below(6)) {
    case 0: return pool.add(x.to(at::kFloat).tanh().to(at::kDouble));
    case 1: return pool.add(x.gt(0).to(at::kDouble) * x);
    case 2: return pool.add(x.to(at::kBFloat16).mul(2));
    case 3: return pool.add(x.clamp(-3, 3).to(at::kLong) + 1);
    case 4: return pool.add(x.to(at::kFloat).mul_(2).add_(x.to(at::kFloat)));
    default: return pool.add((x > 0).logical_and(x < 1).sum());
  }
}

static void draw(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose);
  switch (choose.below(7)) {
    case 0: return pool.add(at::dropout(x, 0.5, true));
    case 1: return pool.add(at::dropout(x.tanh(), 0.1, true) + x);
    case 2: return pool.add(x + at::randn_like(x));
    case 3: return pool.add(x * at::rand(x.sizes(), x.options()));
    case 4: return pool.add(x + at::empty_like(x).uniform_(-1, 1));
    case 5: return pool.add(x * at::bernoulli(x.detach().sigmoid()));
    default: {
      Tensor y = fresh(x.unsqueeze(0), choose);
      y.select(0, 0).normal_(0, 1);
      return pool.add(y + at::dropout(y.clone(), 0.25, true));
    }
  }
}

static void view_in_place(Pool& pool, Choices& choose) {
  const Tensor base = fresh(pool.pick(choose, 1), choose);
  Tensor x = choose.coin() ? base : base.narrow(0, 0, 1);
  switch (choose.below(5)) {
    case 0: x.transpose_(0, x.dim() - 1); break;
    case 1: x.unsqueeze_(1); break;
    case 2: x.unsqueeze_(0).squeeze_(0); break;
    case 3: x.squeeze_(); break;
    default: x.dim() == 2 ? x.t_() : x.swapdims_(0, -1); break;
  }
  if (choose.coin()) x.mul_(choose.number());
  pool.add(x);
  pool.add(base);
}

static void branch_on_input(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick(choose);
  const auto input = static_cast<std::size_t>(choose.below(static_cast<std::int64_t>(pool.inputs.size())));
  if ((pool.inputs[input].sum() > 0).item<bool>())
    pool.add(x * 2);
  else
    pool.add(x.sin());
}

static void differentiate(Pool& pool, Choices& choose) {
  const Tensor x = pool.pick_that(choose, [](const Tensor& tensor) { return tensor.requires_grad(); });
  switch (choose.below(3)) {
    case 0: {
      const Tensor y = unary(x, choose).sum();
      return pool.add(torch::autograd::grad({y}, {x}, {}, true, true)[0]);
    }
    case 1: {
      const Tensor y = x * 1;
      y.register_hook([](const Tensor& grad) { return grad * 2; });
      return pool.add(y);
    }
    default: {
      const at::NoGradGuard no_grad;
      return pool.add(unary(x, choose));
    }
  }
}

namespace {
struct Operation {
  const char* name;
  void (*run)(Pool&, Choices&);
};
}  // namespace
static constexpr Operation kOperations[] = {
    {"activate", activate},
    {"activate_in_place", activate_in_place},
    {"attend", attend},
    {"branch_on_input", branch_on_input},
    {"cast", cast},
    {"combine", combine},
    {"differentiate", differentiate},
    {"draw", draw},
    {"fill_constant", fill_constant},
    {"index_input_by_mask", index_input_by_mask},
    {"index_tensor", index_tensor},
    {"join", join},
    {"multiply", multiply},
    {"normalise", normalise},
    {"read_buffer", read_buffer},
    {"reduce", reduce},
    {"take_alias", take_alias},
    {"take_view", take_view},
    {"view_in_place", view_in_place},
    {"write_buffer", write_buffer},
    {"write_by_index", write_by_index},
    {"write_in_place", write_in_place},
    {"write_through_pieces", write_through_pieces},
    {"write_through_view", write_through_view},
};

Batch random_batch() {
  return Batch{{"a", at::randn({4, 6}, at::kDouble)},
               {"b", at::randn({2, 3, 4}, at::kDouble)},
               {"c", at::randn({6}, at::kDouble)},
               {"index", at::randint(0, 1000, {3}, at::kLong)},
               {"mask", at::randint(0, 2, {4}, at::kLong).to(at::kBool)}};
}

Tensor loss_of(RandomModule& module, const Statements& statements, const Batch& batch) {
  // Statements may write to the inputs, with values of parameters too; what control flow reads are copies.
  const std::vector<Tensor> inputs = {batch["a"], batch["b"], batch["c"]};
  Pool pool{.module = module,
            .index = batch["index"],
            .mask = batch["mask"],
            .inputs = {inputs[0].clone(), inputs[1].clone(), inputs[2].clone()}};
  for (const auto size : {3, 4, 6}) {
    pool.tensors.push_back(module.matrices[size]);
    pool.tensors.push_back(module.vectors[size]);
  }
  for (const auto& tensors : {inputs, module.earlier})
    pool.tensors.insert(pool.tensors.end(), tensors.begin(), tensors.end());
  pool.num_given = pool.tensors.size();
  for (const auto& statement : statements) {
    Choices choices(statement);
    kOperations[statement.operation].run(pool, choices);
  }
  Tensor loss = (pool.inputs[0] * module.vectors[6]).mean();
  double weight = 1;
  for (std::size_t i = pool.num_given; i < pool.tensors.size(); ++i)
    loss = loss + (pool.tensors[i].tanh() * (weight += 0.25)).mean();
  return loss;
}

Statement random_statement(std::mt19937_64& random) {
  Statement statement{.operation = random() % std::size(kOperations)};
  for (auto& number : statement.numbers) number = static_cast<std::uint32_t>(random());
  return statement;
}

std::string to_text(const Statements& statements) {
  std::ostringstream text;
  for (const auto& [operation, numbers] : statements) {
    text << kOperations[operation].name;
    for (const auto number : numbers) text << ' ' << number;
    text << '\n';
  }
  return text.str();
}

}  // namespace random_modules
