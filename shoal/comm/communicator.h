// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other: ten operations, and a barrier, between the ranks of one group.
//
//   broadcast       root's buffer            -> everybody's
//   reduce          everybody's              -> their sum in root's
//   all_reduce      everybody's              -> their sum in everybody's
//   gather          one part of each rank    -> all parts, by rank, on root
//   all_gather      one part of each rank    -> all parts, by rank, on everybody
//   scatter         root's parts             -> part r on rank r
//   reduce_scatter  everybody's parts        -> the sum of all parts r on rank r
//   all_to_all      part q of rank p         -> part p of rank q
//   send, receive   one rank's buffer        -> another's
//
// Calls on one communicator come from one thread at a time, in the same order on every rank of its group
// (send and receive: in the same order on the two ranks). Operation, element type and count of each call, and
// a message's tag, are compared between ranks, always; a difference is an error on every rank that shows both
// calls.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shoal/base/dtype.h"
#include "shoal/base/error.h"

namespace shoal::comm {

enum class ReduceOp { Sum, Average, Min, Max };  // elementwise, over ranks
std::string_view name_of(ReduceOp op);           // "sum", "average", …

// Contiguous elements, borrowed until the Work that uses them is done. Float64, Float32, Float16, BFloat16,
// Int64, Int32 and UInt8; Average only of floating types. data may be null where count is 0.
struct Buffer {
  void* data = nullptr;
  std::int64_t count = 0;        // elements
  DType dtype = DType::Float32;  // of the Float64, … above
};
// The same, to be read alone.
struct ConstBuffer {
  // As in Buffer.
  const void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::Float32;

  // Of its three fields, or of a buffer.
  ConstBuffer() = default;
  ConstBuffer(const void* elements, std::int64_t num, DType type) : data(elements), count(num), dtype(type) {}
  ConstBuffer(const Buffer& buffer) : data(buffer.data), count(buffer.count), dtype(buffer.dtype) {}
};

// What a message is, for those of which several have one size: without it nobody sees that one was left out.
struct Tag {
  std::uint16_t microbatch = 0;  // from 0
  std::uint16_t message = 0;     // of the micro-batch, from 1; 0: this is no tag
  friend bool operator==(const Tag&, const Tag&) = default;
};

// A call under way. Its buffers are its own until wait() has returned or thrown.
class Work {
 public:
  virtual ~Work() = default;  // of a call that is not done: aborts its communicator
  // Whole, or throws: Timeout after `limit`, PeerLost where a rank has gone, InvalidInput where ranks called
  // different things. After a throw the communicator is aborted: later calls throw the same.
  virtual void wait(std::chrono::nanoseconds limit) = 0;
  virtual bool done() = 0;  // whether wait() would return or throw at once; may make progress, never blocks
};

// Memory that a communicator moves without an extra copy. Freed with the object; may outlive the
// communicator.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* data() = 0;                // 64-byte aligned, zeroed
  virtual std::int64_t bytes() const = 0;  // as many as were asked for
};

// Of one rank, between those of a group. What a call returns may be under way still. It throws InvalidInput
// where it cannot be right on this rank, naming what it asks for: an element type that is not moved, a count
// that does not fit, a rank outside of the group, an average of integers; and what ended the group, if
// anything has.
class Communicator {
 public:
  virtual ~Communicator() = default;  // with calls under way: aborts
  virtual int rank() const = 0;       // in this group, 0 … size() - 1
  virtual int size() const = 0;       // ranks of the group
  // Whether calls go on by themselves, beside what their rank does; else inside its calls alone.
  virtual bool is_asynchronous() const = 0;

  virtual std::unique_ptr<Work> broadcast(Buffer buffer, int root) = 0;  // root: a rank of the group
  virtual std::unique_ptr<Work> reduce(Buffer buffer, ReduceOp op, int root) = 0;  // others' buffers stay
  virtual std::unique_ptr<Work> all_reduce(Buffer buffer, ReduceOp op) = 0;        // in place
  // Where `out` holds the parts of all ranks it has size() times the elements of `in`; where `in` does, the
  // other way round. The side that only root uses is ignored on other ranks. `in` may be this rank's part of
  // `out` (gather, all_gather), `out` this rank's part of `in` (scatter, reduce_scatter).
  virtual std::unique_ptr<Work> gather(ConstBuffer in, Buffer out, int root) = 0;
  virtual std::unique_ptr<Work> all_gather(ConstBuffer in, Buffer out) = 0;
  virtual std::unique_ptr<Work> scatter(ConstBuffer in, Buffer out, int root) = 0;
  virtual std::unique_ptr<Work> reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) = 0;
  // Elements for and from each rank, by rank; both empty: equal parts. `in` and `out` do not overlap.
  virtual std::unique_ptr<Work> all_to_all(ConstBuffer in, Buffer out,
                                           std::span<const std::int64_t> in_counts = {},
                                           std::span<const std::int64_t> out_counts = {}) = 0;
  // A message between two ranks of the group, of equal counts.
  virtual std::unique_ptr<Work> send(ConstBuffer buffer, int to, Tag tag = {}) = 0;
  virtual std::unique_ptr<Work> receive(Buffer buffer, int from, Tag tag = {}) = 0;
  virtual std::unique_ptr<Work> barrier() = 0;  // done once all ranks have called it

  // Of this rank alone: others need not call it. Throws Infeasible where there is no memory.
  virtual std::unique_ptr<Memory> allocate(std::int64_t bytes) = 0;
  // A communicator of these ranks of this group, in this order. Called by exactly those ranks, which may not
  // have calls under way here. Throws InvalidInput where they are none, not in the group, named twice, or
  // without this one.
  virtual std::unique_ptr<Communicator> subgroup(std::span<const int> ranks) = 0;
  // Ends every call under way on every rank of the group: they throw this reason, of this kind. Any thread.
  virtual void abort(std::string_view reason, ErrorKind kind = ErrorKind::PeerLost) noexcept = 0;
};

}  // namespace shoal::comm
