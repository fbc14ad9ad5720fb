// SPDX-License-Identifier: Apache-2.0
// Whether all ranks call the same. Where the engine has tags, a call's is made of its number and of what it
// asks for: calls that differ never meet, and all their ranks wait, until the watch finds out. Without tags,
// and for the parts of all_to_all, which may be of any size, the ranks exchange records of their calls and
// compare them before data moves.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "shoal/comm_c10d/c10d_communicator.h"

namespace shoal::comm_c10d {

static std::uint32_t hash_of(const Call& call) {  // FNV-1a
  std::uint32_t hash = 2166136261;
  for (const std::uint64_t word :
       {static_cast<std::uint64_t>(call.op), static_cast<std::uint64_t>(call.dtype),
        static_cast<std::uint64_t>(call.count), static_cast<std::uint64_t>(call.reduce),
        static_cast<std::uint64_t>(call.peer), static_cast<std::uint64_t>(call.tag.microbatch),
        static_cast<std::uint64_t>(call.tag.message)})
    for (int byte = 0; byte < 8; ++byte)
      hash = (hash ^ static_cast<std::uint8_t>(word >> (8 * byte))) * 16777619;
  return hash;
}

// Different for each part of each of 2^32 / 3 calls that ask for the same; for calls that do not, but with
// one chance in 2^32.
static std::uint32_t tag_of_all(const Numbered& numbered, Part part) {
  constexpr std::uint32_t kOdd = 2654435769;
  const auto place = static_cast<std::uint32_t>(3 * numbered.number + static_cast<std::uint32_t>(part));
  return hash_of(numbered.call) + kOdd * place;
}

void C10dCommunicator::tag_next(const Numbered& numbered, Part part) const {
  // Messages have lanes of their own, and would set it in the middle of a collective.
  if (engine_.tag_next && engine_.calls == Calls::Compared && !is_message(numbered.call.op))
    engine_.tag_next(tag_of_all(numbered, part));
}

int C10dCommunicator::tag_of(const Numbered& message, Part part) const {
  const Call& call = message.call;
  const bool is_upwards = (call.op == Op::Send) == (rank() < call.peer);
  std::uint32_t tag = static_cast<std::uint32_t>(part);
  if (engine_.tag_next &&
      engine_.calls == Calls::Compared)  // c10d takes 31 bits; the last one is for the end
    tag =
        tag_of_all({{.dtype = call.dtype, .count = call.count, .tag = call.tag}, message.number}, part) >> 3;
  return static_cast<int>(2 * tag + (is_upwards ? 1 : 0));
}

static constexpr std::int64_t kFixedWords = 7;

at::Tensor C10dCommunicator::tensor_of(const Record& record) const {
  at::Tensor tensor = at::zeros({kFixedWords + 2 * size()}, at::kLong);
  std::int64_t* words = tensor.data_ptr<std::int64_t>();
  *words++ = static_cast<std::int64_t>(record.call.op);
  *words++ = static_cast<std::int64_t>(record.call.dtype);
  *words++ = record.call.count;
  *words++ = static_cast<std::int64_t>(record.call.reduce);
  *words++ = record.call.peer;
  *words++ = record.call.tag.microbatch;
  *words++ = record.call.tag.message;
  std::ranges::copy(record.in_counts, words);
  std::ranges::copy(record.out_counts, words + size());
  return tensor.to(engine_.device);
}

std::vector<Record> C10dCommunicator::records_of(const at::Tensor& tensor) const {
  const at::Tensor all = tensor.cpu();
  std::vector<Record> records;
  const std::int64_t* words = all.data_ptr<std::int64_t>();
  for (const std::int64_t* end = words + all.numel(); words < end; words += 2 * size()) {
    Record record;
    record.call.op = static_cast<Op>(*words++);
    record.call.dtype = static_cast<DType>(*words++);
    record.call.count = *words++;
    record.call.reduce = static_cast<ReduceOp>(*words++);
    record.call.peer = static_cast<int>(*words++);
    record.call.tag.microbatch = static_cast<std::uint16_t>(*words++);
    record.call.tag.message = static_cast<std::uint16_t>(*words++);
    record.in_counts.assign(words, words + size());
    record.out_counts.assign(words + size(), words + 2 * size());
    records.push_back(std::move(record));
  }
  return records;
}

// The same error on every rank, whichever differ.
static void check_same(const std::vector<Record>& records, std::uint64_t number) {
  for (std::size_t p = 0; p < records.size(); ++p)
    for (std::size_t q = 0; q < records.size(); ++q) {
      const Record &a = records[p], &b = records[q];
      SHOAL_CHECK(a.call == b.call, InvalidInput,
                  comm::mismatch(number, static_cast<int>(p), a.call, static_cast<int>(q), b.call));
      SHOAL_CHECK(a.call.op != Op::AllToAll || a.in_counts[q] == b.out_counts[p], InvalidInput, "comm: call ",
                  number, ": ", describe(a.call), ": rank ", p, " has ", a.in_counts[q],
                  " elements for rank ", q, ", which wants ", b.out_counts[p]);
    }
}

std::vector<Record> C10dCommunicator::compare(const Request& request, const Numbered& numbered) {
  at::Tensor mine = tensor_of(Record{numbered.call, request.in_counts, request.out_counts});
  at::Tensor all = at::empty({size() * mine.numel()}, mine.options());
  tag_next(numbered, Part::Record);
  finish(engine_.backend->_allgather_base(all, mine, without_limit<c10d::AllgatherOptions>()));
  std::vector<Record> records = records_of(all);
  try {
    check_same(records, numbered.number);
  } catch (const Error&) {
    // Every rank sees it, once the records have reached it: nobody cuts the connections before.
    tag_next(numbered, Part::End);
    try {
      meet();
    } catch (const std::exception&) {  // who has left had met everybody
    }
    throw;
  }
  return records;
}

void C10dCommunicator::compare_with_peer(const Numbered& numbered) {
  const auto& [call, number] = numbered;
  const int peer = call.peer;
  std::vector<at::Tensor> mine = {tensor_of(Record{.call = call})};
  std::vector<at::Tensor> its = {at::empty_like(mine[0])};
  const auto exchange = [&](Part part) {
    const int tag = tag_of(numbered, part);
    const bool is_first = rank() < peer;  // NCCL wants one of the two to send first
    auto first = is_first ? engine_.backend->send(mine, peer, tag) : engine_.backend->recv(its, peer, tag);
    auto second = is_first ? engine_.backend->recv(its, peer, tag) : engine_.backend->send(mine, peer, tag);
    finish(first);
    finish(second);
  };
  exchange(Part::Record);
  const Call other = records_of(its[0]).at(0).call;
  if (is_one_message(call, other)) return;
  try {
    exchange(Part::End);             // both have the records then
  } catch (const std::exception&) {  // the other one has, and left
  }
  throw Error(ErrorKind::InvalidInput, rank() < peer ? comm::mismatch(number, rank(), call, peer, other)
                                                     : comm::mismatch(number, peer, other, rank(), call));
}

}  // namespace shoal::comm_c10d
