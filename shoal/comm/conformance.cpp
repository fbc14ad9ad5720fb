// SPDX-License-Identifier: Apache-2.0
// Above 400 lines: one suite, of which what is wanted of a call and how it is made are read together.
#include "shoal/comm/conformance.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "shoal/base/error.h"
#include "shoal/comm/call.h"
#include "shoal/comm/reference.h"

namespace shoal::comm {

namespace {

using Bytes = std::vector<std::byte>;

// One call of all ranks.
struct Case {
  Op op = Op::Barrier;
  DType dtype = DType::Float32;
  std::int64_t count = 0;  // of one part
  ReduceOp reduce = ReduceOp::Sum;
  int root = 0;  // of a message: from
  int to = 0;
  std::vector<std::int64_t> counts;  // all_to_all: from rank p to q at p * size + q; empty: `count` each
  std::uint64_t seed = 0;
};

// How one rank makes it.
struct Manner {
  bool allocated_in = false, allocated_out = false;
  bool in_place = false;  // where the operation allows it: `in` a part of `out`, or `out` of `in`
};

std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// A whole number below 16 as an element.
std::uint64_t bits_of_number(DType dtype, unsigned number) {
  const auto as_float = static_cast<float>(number);
  switch (dtype) {
    case DType::Float64: return std::bit_cast<std::uint64_t>(static_cast<double>(number));
    case DType::Float32: return std::bit_cast<std::uint32_t>(as_float);
    case DType::BFloat16: return std::bit_cast<std::uint32_t>(as_float) >> 16;
    case DType::Float16: {
      if (number == 0) return 0;
      const unsigned exponent = static_cast<unsigned>(std::bit_width(number)) - 1;
      return ((exponent + 15) << 10) | ((number << (10 - exponent)) & 0x3ffU);
    }
    default: return number;
  }
}

// Any bits, but no infinity and no NaN: the highest bit of the exponent is 0.
std::uint64_t bits_of_any(DType dtype, std::uint64_t random) {
  switch (dtype) {
    case DType::Float64: return random & ~(std::uint64_t{1} << 62);
    case DType::Float32: return random & ~(std::uint64_t{1} << 30);
    case DType::Float16:
    case DType::BFloat16: return random & ~(std::uint64_t{1} << 14);
    default: return random;
  }
}

class Suite {
 public:
  Suite(Communicator& communicator, const Conformance& options) : comm_(communicator), options_(options) {}

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  Communicator& communicator() { return comm_; }
  const Conformance& options() const { return options_; }

  Bytes input(const Case& call, int rank) const;
  Bytes output(const Case& call, int rank) const;  // what the rank has to have
  bool has_output(const Case& call, int rank) const;

  [[noreturn]] void differ(const Case& call, const Bytes& got, const Bytes& wanted) const;

  std::int64_t between(const Case& call, int from, int to) const {
    return call.counts.empty()
               ? call.count
               : call.counts[static_cast<std::size_t>(from) * static_cast<std::size_t>(size()) +
                             static_cast<std::size_t>(to)];
  }
  std::int64_t sum_from(const Case& call, int from, int end) const {
    std::int64_t sum = 0;
    for (int to = 0; to < end; ++to) sum += between(call, from, to);
    return sum;
  }
  std::int64_t sum_to(const Case& call, int to, int end) const {
    std::int64_t sum = 0;
    for (int from = 0; from < end; ++from) sum += between(call, from, to);
    return sum;
  }

 private:
  Bytes reduced(const Case& call, std::int64_t first) const;

  Communicator& comm_;
  const Conformance& options_;
};

std::int64_t num_inputs(const Suite& suite, const Case& call, int rank) {
  switch (call.op) {
    case Op::Scatter: return rank == call.root ? call.count * suite.size() : 0;
    case Op::ReduceScatter: return call.count * suite.size();
    case Op::AllToAll: return suite.sum_from(call, rank, suite.size());
    case Op::Send: return rank == call.root ? call.count : 0;
    case Op::Barrier: return 0;
    default: return call.count;
  }
}

std::int64_t num_outputs(const Suite& suite, const Case& call, int rank) {
  switch (call.op) {
    case Op::Gather: return rank == call.root ? call.count * suite.size() : 0;
    case Op::AllGather: return call.count * suite.size();
    case Op::AllToAll: return suite.sum_to(call, rank, suite.size());
    case Op::Send: return rank == call.to ? call.count : 0;
    case Op::Barrier: return 0;
    default: return call.count;
  }
}

template <class Element>
void draw(std::uint64_t start, DType dtype, bool exact, Bytes& bytes) {
  const std::uint64_t kept = bits_of_any(dtype, ~std::uint64_t{0});
  std::uint64_t numbers[8];
  for (unsigned i = 0; i < 8; ++i) numbers[i] = bits_of_number(dtype, i);
  for (std::size_t i = 0; i < bytes.size() / sizeof(Element); ++i) {
    std::uint64_t random = (start + i) * 0x9e3779b97f4a7c15U;
    random ^= random >> 29;
    const auto bits = static_cast<Element>(exact ? numbers[random % 8] : random & kept);
    std::memcpy(bytes.data() + i * sizeof(Element), &bits, sizeof(Element));
  }
}

Bytes Suite::input(const Case& call, int rank) const {
  const std::int64_t width = bytes_of(call.dtype);
  Bytes bytes(static_cast<std::size_t>(num_inputs(*this, call, rank) * width));
  const std::uint64_t start = mixed(call.seed * 1000 + static_cast<std::uint64_t>(rank));
  const bool exact = options_.exact_sums;
  if (width == 8) draw<std::uint64_t>(start, call.dtype, exact, bytes);
  if (width == 4) draw<std::uint32_t>(start, call.dtype, exact, bytes);
  if (width == 2) draw<std::uint16_t>(start, call.dtype, exact, bytes);
  if (width == 1) draw<std::uint8_t>(start, call.dtype, exact, bytes);
  return bytes;
}

// Of `count` elements of every rank's input, from `first` on.
Bytes Suite::reduced(const Case& call, std::int64_t first) const {
  const std::int64_t width = bytes_of(call.dtype);
  std::vector<Bytes> inputs;
  std::vector<const std::byte*> from;
  for (int r = 0; r < size(); ++r) inputs.push_back(input(call, r));
  for (const Bytes& bytes : inputs) from.push_back(bytes.data() + first * width);
  return expected_reduction(call.dtype, call.reduce, call.count, from);
}

Bytes Suite::output(const Case& call, int rank) const {
  const std::int64_t width = bytes_of(call.dtype);
  const auto slice = [&](const Bytes& bytes, std::int64_t first, std::int64_t count) {
    const auto begin = bytes.begin() + first * width;
    return Bytes(begin, begin + count * width);
  };
  Bytes all;
  const auto append = [&](const Bytes& bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); };
  switch (call.op) {
    case Op::Broadcast:
    case Op::Send: return input(call, call.root);
    case Op::Reduce: return rank == call.root ? reduced(call, 0) : input(call, rank);
    case Op::AllReduce: return reduced(call, 0);
    case Op::Gather:
    case Op::AllGather:
      for (int r = 0; r < size(); ++r) append(input(call, r));
      return all;
    case Op::Scatter: return slice(input(call, call.root), rank * call.count, call.count);
    case Op::ReduceScatter: return reduced(call, rank * call.count);
    case Op::AllToAll:
      for (int r = 0; r < size(); ++r)
        append(slice(input(call, r), sum_from(call, r, rank), between(call, r, rank)));
      return all;
    case Op::Receive:
    case Op::Barrier: break;
  }
  return all;
}

bool Suite::has_output(const Case& call, int rank) const {
  if (call.op == Op::Gather) return rank == call.root;
  if (call.op == Op::Send) return rank == call.to;
  return true;
}

void Suite::differ(const Case& call, const Bytes& got, const Bytes& wanted) const {
  const auto width = static_cast<std::size_t>(bytes_of(call.dtype));
  std::size_t i = 0;
  while (got[i] == wanted[i]) ++i;
  i /= width;
  std::uint64_t got_bits = 0, wanted_bits = 0;
  std::memcpy(&got_bits, got.data() + i * width, width);
  std::memcpy(&wanted_bits, wanted.data() + i * width, width);
  fail(ErrorKind::Internal,
       "conformance: ", describe({call.op, call.dtype, call.count, call.reduce, call.root}), " of ", size(),
       " ranks, seed ", call.seed, ": rank ", rank(), " has the bits ", std::hex, got_bits, " where ",
       wanted_bits, std::dec, " was wanted, element ", i);
}

// Elements in memory of one kind or the other.
class Held {
 public:
  Held(Communicator& comm, std::int64_t bytes, bool allocated) : bytes_(bytes) {
    if (allocated) {
      memory_ = comm.allocate(bytes);
    } else {
      plain_.resize(static_cast<std::size_t>(bytes) + 1);  // never null
    }
  }
  std::byte* data() { return memory_ ? static_cast<std::byte*>(memory_->data()) : plain_.data(); }
  void put(const Bytes& bytes, std::int64_t offset) {
    if (!bytes.empty()) std::memcpy(data() + offset, bytes.data(), bytes.size());
  }
  Bytes bytes(std::int64_t offset, std::int64_t count) { return {data() + offset, data() + offset + count}; }
  std::int64_t size() const { return bytes_; }

 private:
  std::int64_t bytes_;
  Bytes plain_;
  std::unique_ptr<Memory> memory_;
};

// A call of this rank, under way.
class Trial {
 public:
  Trial(Suite& suite, Case call, const Manner& manner) : suite_(suite), call_(std::move(call)) {
    const int rank = suite.rank();
    const std::int64_t width = bytes_of(call_.dtype);
    const Bytes input = suite.input(call_, rank);
    in_count_ = num_inputs(suite, call_, rank);
    out_count_ = num_outputs(suite, call_, rank);
    const bool one_buffer = call_.op == Op::Broadcast || call_.op == Op::Reduce ||
                            call_.op == Op::AllReduce || call_.op == Op::Barrier;
    const bool in_within =
        manner.in_place && (call_.op == Op::AllGather || (call_.op == Op::Gather && rank == call_.root));
    const bool out_within =
        manner.in_place && (call_.op == Op::ReduceScatter || (call_.op == Op::Scatter && rank == call_.root));
    Communicator& comm = suite.communicator();
    if (!one_buffer && !in_within) in_.emplace(comm, in_count_ * width, manner.allocated_in);
    if (!out_within) out_.emplace(comm, out_count_ * width, manner.allocated_out);
    in_offset_ = in_within ? rank * call_.count * width : 0;
    out_offset_ = out_within ? rank * call_.count * width : 0;
    const bool fills = call_.op != Op::Broadcast || rank == call_.root;
    if (fills) (in_ ? *in_ : *out_).put(input, in_offset_);
    start(comm);
  }

  void finish() {
    for (const std::unique_ptr<Work>& work : works_) work->wait(suite_.options().limit);
    if (!suite_.has_output(call_, suite_.rank())) return;
    const Bytes wanted = suite_.output(call_, suite_.rank());
    const Bytes got = (out_ ? *out_ : *in_).bytes(out_offset_, out_count_ * bytes_of(call_.dtype));
    if (got != wanted) suite_.differ(call_, got, wanted);
  }

 private:
  void start(Communicator& comm) {
    const int rank = suite_.rank(), size = suite_.size();
    const ConstBuffer in((in_ ? *in_ : *out_).data() + in_offset_, in_count_, call_.dtype);
    const Buffer out = {(out_ ? *out_ : *in_).data() + out_offset_, out_count_, call_.dtype};
    if (call_.op == Op::Send) {
      if (rank == call_.root) works_.push_back(comm.send(in, call_.to));
      if (rank == call_.to) works_.push_back(comm.receive(out, call_.root));
      return;
    }
    Request request = {.op = call_.op, .in = in, .out = out, .reduce = call_.reduce, .peer = call_.root};
    if (call_.op == Op::AllToAll && !call_.counts.empty())
      for (int r = 0; r < size; ++r) {
        request.in_counts.push_back(suite_.between(call_, rank, r));
        request.out_counts.push_back(suite_.between(call_, r, rank));
      }
    works_.push_back(forward(comm, request));
  }

  Suite& suite_;
  Case call_;
  std::int64_t in_count_ = 0, out_count_ = 0, in_offset_ = 0, out_offset_ = 0;
  std::optional<Held> in_, out_;
  std::vector<std::unique_ptr<Work>> works_;
};

constexpr ReduceOp kReduceOps[] = {ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max};
constexpr Op kCollectives[] = {Op::Broadcast, Op::Reduce,        Op::AllReduce, Op::Gather, Op::AllGather,
                               Op::Scatter,   Op::ReduceScatter, Op::AllToAll,  Op::Barrier};

bool reduces(Op op) { return op == Op::Reduce || op == Op::AllReduce || op == Op::ReduceScatter; }
bool has_root(Op op) {
  return op == Op::Broadcast || op == Op::Reduce || op == Op::Gather || op == Op::Scatter;
}

std::vector<std::int64_t> uneven(int size, std::int64_t most, std::uint64_t seed) {
  std::vector<std::int64_t> counts;
  for (int i = 0; i < size * size; ++i)
    counts.push_back(static_cast<std::int64_t>(mixed(seed + static_cast<std::uint64_t>(i)) %
                                               static_cast<std::uint64_t>(most + 1)));
  return counts;
}

// One operation in all its forms.
void conform_operation(Suite& suite, Op op, DType dtype, std::int64_t count, const Manner& manner) {
  std::uint64_t seed = static_cast<std::uint64_t>(op) * 97 + static_cast<std::uint64_t>(count);
  for (const int root : {0, suite.size() - 1}) {
    if (root > 0 && !has_root(op)) continue;
    for (const ReduceOp reduce : kReduceOps) {
      const bool of_integers = reduce == ReduceOp::Average && !is_floating(dtype);
      if (reduce != ReduceOp::Sum && (!reduces(op) || of_integers)) continue;
      const Case call = {
          .op = op, .dtype = dtype, .count = count, .reduce = reduce, .root = root, .seed = ++seed};
      Trial(suite, call, manner).finish();
    }
    if (root == suite.size() - 1) break;  // of one rank
  }
  if (op != Op::AllToAll) return;
  const std::vector<std::int64_t> counts = uneven(suite.size(), count, seed);
  Trial(suite, {.op = op, .dtype = dtype, .count = count, .counts = counts, .seed = ++seed}, manner).finish();
}

// To the next rank and from the one before it, then the other way round: all at once.
void conform_messages(Suite& suite, DType dtype, std::int64_t count, const Manner& manner) {
  const int size = suite.size();
  for (const int step : {1, size - 1}) {
    if (size == 1 && !suite.options().self_messages) return;
    std::vector<std::unique_ptr<Trial>> trials;
    for (int from = 0; from < size; ++from) {
      const Case call = {.op = Op::Send,
                         .dtype = dtype,
                         .count = count,
                         .root = from,
                         .to = (from + step) % size,
                         .seed = static_cast<std::uint64_t>(from + step * 31)};
      trials.push_back(std::make_unique<Trial>(suite, call, manner));
    }
    for (const std::unique_ptr<Trial>& trial : trials) trial->finish();
  }
}

void conform_subgroups(Suite& suite) {
  const int size = suite.size(), rank = suite.rank();
  std::vector<int> odd, even, backwards;
  for (int r = 0; r < size; ++r) (r % 2 ? odd : even).push_back(r);
  for (int r = size - 1; r >= 0; --r) backwards.push_back(r);
  for (const std::vector<int>& ranks : {rank % 2 ? odd : even, backwards}) {
    const std::unique_ptr<Communicator> group = suite.communicator().subgroup(ranks);
    SHOAL_CHECK(group->size() == static_cast<int>(ranks.size()) &&
                    ranks[static_cast<std::size_t>(group->rank())] == rank,
                Internal, "conformance: rank ", rank, " is rank ", group->rank(), " of a subgroup of ",
                group->size());
    Suite inner(*group, suite.options());
    for (const Op op : kCollectives)
      for (const std::int64_t count : {3, 20001}) conform_operation(inner, op, DType::Float32, count, {});
    conform_messages(inner, DType::Int64, 17, {});
    const std::vector<int> first = {0};
    if (group->rank() == 0) group->subgroup(first)->barrier()->wait(suite.options().limit);
  }
}

}  // namespace

void conform(Communicator& communicator, const Conformance& options) {
  Suite suite(communicator, options);
  const bool odd = communicator.rank() % 2 == 1;
  const Manner manners[] = {{}, {true, true, true}, {odd, !odd, false}};
  int type = 0;
  for (const DType dtype : options.dtypes) {
    const Manner& large_manner = manners[type++ % 2];  // float32 moves large counts in all manners
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{333}, options.large}) {
      for (const Manner& manner : manners) {
        const bool is_large = count == options.large;
        if (dtype != DType::Float32 && (is_large ? &manner != &large_manner : &manner == &manners[2]))
          continue;
        for (const Op op : kCollectives) {
          const bool parts = op != Op::Broadcast && op != Op::Reduce && op != Op::AllReduce;
          const std::int64_t part = count == options.large && parts ? count / communicator.size() : count;
          conform_operation(suite, op, dtype, part, manner);
        }
        conform_messages(suite, dtype, count, manner);
      }
    }
  }
  if (options.subgroups) conform_subgroups(suite);
  communicator.barrier()->wait(options.limit);
}

void random_calls(Communicator& communicator, std::uint64_t seed, int num_calls, const Conformance& options) {
  Suite suite(communicator, options);
  // The same on every rank, and this rank's own.
  std::mt19937_64 common(seed), own(mixed(seed) + static_cast<std::uint64_t>(communicator.rank()));
  const auto draw = [](std::mt19937_64& random, std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
  };
  std::vector<std::unique_ptr<Trial>> trials;
  const auto finish_one = [&] {
    const auto which = trials.begin() + draw(own, static_cast<std::int64_t>(trials.size()));
    (*which)->finish();
    trials.erase(which);
  };
  for (int i = 0; i < num_calls; ++i) {
    Case call = {.seed = seed * 100 + static_cast<std::uint64_t>(i)};
    call.dtype =
        options
            .dtypes[static_cast<std::size_t>(draw(common, static_cast<std::int64_t>(options.dtypes.size())))];
    const std::int64_t most = std::int64_t{1} << draw(common, draw(common, 50) == 0 ? 17 : 12);
    call.count = draw(common, most + 1);
    call.root = static_cast<int>(draw(common, suite.size()));
    call.to = static_cast<int>(draw(common, suite.size()));
    if (!options.self_messages && call.to == call.root) call.to = (call.to + 1) % suite.size();
    const std::int64_t op = draw(common, static_cast<std::int64_t>(std::size(kCollectives)) + 3);
    call.op = op < static_cast<std::int64_t>(std::size(kCollectives)) ? kCollectives[op] : Op::Send;
    if (reduces(call.op)) call.reduce = kReduceOps[draw(common, is_floating(call.dtype) ? 4 : 1)];
    if (call.op == Op::AllToAll && draw(common, 2) == 0)
      call.counts = uneven(suite.size(), std::min<std::int64_t>(call.count, 5000), call.seed);
    const Manner manner = {draw(own, 2) == 0, draw(own, 2) == 0, draw(own, 2) == 0};
    trials.push_back(std::make_unique<Trial>(suite, call, manner));
    while (!trials.empty() && draw(own, 4) > 0) finish_one();
    if (trials.size() > 6) finish_one();
  }
  while (!trials.empty()) finish_one();
}

}  // namespace shoal::comm
