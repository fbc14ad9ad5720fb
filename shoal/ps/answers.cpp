// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/answers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::ps {

using wire::Operation;

static constexpr std::size_t kMostTables = 1024;

// A reply without a payload, or with a few bytes.
static wire::Head reply_to(const wire::Head& request) {
  wire::Head head = request;
  head.operation = Operation::Done;
  return head;
}

static void put_few(std::vector<std::byte>& reply, const wire::Head& head,
                    std::span<const std::byte> payload) {
  reply = wire::frame(head, std::array{payload});
}

void Answers::answer(const wire::Head& head, std::span<const std::byte> payload,
                     std::vector<std::byte>& reply) {
  wire::check_payload(head, payload);
  Last* last = nullptr;
  if (head.operation == Operation::Push ||
      head.operation == Operation::Shrink) {  // what must not happen twice
    last = &last_[head.client];
    if (head.sequence == last->sequence && !last->reply.empty()) {
      reply = last->reply;
      return;
    }
  }
  try {
    SHOAL_CHECK(head.epoch == epoch_, PeerLost, "ps: epoch ", head.epoch, " of this job is over; it is at ",
                epoch_);
    SHOAL_CHECK(!last || head.sequence > last->sequence, InvalidInput, "ps: request ", head.sequence,
                " of a client whose request ", last ? last->sequence : 0, " was done already");
    answer_checked(head, payload, reply);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Corrupt) throw;
    reply = wire::failure(head, error);
    if (last && head.sequence <= last->sequence) return;
  } catch (const std::bad_alloc&) {
    reply = wire::failure(head, Error(ErrorKind::Infeasible, "ps: the server is out of memory"));
  }
  if (last) *last = {.sequence = head.sequence, .reply = reply};
}

void Answers::answer_checked(const wire::Head& head, std::span<const std::byte> payload,
                             std::vector<std::byte>& reply) {
  wire::Head done = reply_to(head);
  switch (head.operation) {
    case Operation::Create:
      done.table = create(payload);
      put_few(reply, done, {});
      return;
    case Operation::Pull: {
      const Table& from = table(head);
      const auto keys = wire::keys_of(head, payload);
      check_keys(from, keys);
      const std::size_t values = keys.size() * from.width();
      SHOAL_CHECK(values * sizeof(float) <= wire::kMostBytes, InvalidInput, "ps: rows of ", keys.size(),
                  " keys are more than goes at once; pull fewer");
      reply.resize(sizeof done + values * sizeof(float));
      from.pull(keys, {reinterpret_cast<float*>(reply.data() + sizeof done), values});
      wire::seal(reply, done);
      return;
    }
    case Operation::Push:
      push(head, payload);
      put_few(reply, done, {});
      return;
    case Operation::Shrink: {
      Table& whole = table(head);
      whole.set_day(wire::day_of(payload));
      const Shrunk shrunk = whole.shrink(loops_);
      put_few(reply, done, std::as_bytes(std::span(&shrunk, 1)));
      return;
    }
    case Operation::Digest: {
      const std::array<std::uint64_t, 2> digest = {table(head).digest(),
                                                   static_cast<std::uint64_t>(table(head).num_rows())};
      put_few(reply, done, std::as_bytes(std::span(digest)));
      return;
    }
    case Operation::Done:
    case Operation::Failed: break;
  }
  fail(ErrorKind::Corrupt, "ps: an answer where a request was wanted");
}

std::uint32_t Answers::create(std::span<const std::byte> text) {
  SHOAL_CHECK(text.size() <= wire::kMostText, InvalidInput, "ps: a table's definition of ", text.size(),
              " bytes");
  Definition wanted =
      definition_from_text(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    const Definition& here = tables_[i]->definition();
    if (here.name != wanted.name) continue;
    const std::string differs = difference(here, wanted);
    SHOAL_CHECK(differs.empty(), InvalidInput, "ps: table ", quoted(here.name),
                " is another one on the server than at this worker: ", differs);
    return static_cast<std::uint32_t>(i);
  }
  SHOAL_CHECK(tables_.size() < kMostTables, InvalidInput, "ps: there are ", tables_.size(),
              " tables already");
  SHOAL_CHECK(wanted.shards >= loops_, InvalidInput, "ps: table ", quoted(wanted.name), ": shards is ",
              wanted.shards, ", and there are ", loops_, " loops of servers to share them");
  tables_.push_back(std::make_unique<Table>(std::move(wanted)));
  return static_cast<std::uint32_t>(tables_.size() - 1);
}

Table& Answers::table(const wire::Head& head) {
  SHOAL_CHECK(head.table < tables_.size(), InvalidInput, "ps: there is no table number ", head.table,
              "; create it first");
  return *tables_[head.table];
}

void Answers::check_keys(const Table& table, std::span<const std::uint64_t> keys) const {
  if (loops_ == 1) return;
  for (const std::uint64_t key : keys)
    SHOAL_CHECK(table.shard_of(key) % loops_ == loop_, InvalidInput, "ps: table ",
                quoted(table.definition().name), ": key ", key, " belongs to loop ",
                table.shard_of(key) % loops_, ", and was sent to ", loop_,
                "; do client and servers agree on the number of loops?");
}

void Answers::push(const wire::Head& head, std::span<const std::byte> payload) {
  Table& to = table(head);
  const Push push = wire::push_of(head, payload, to.width());
  check_keys(to, push.keys);
  to.push(push);
  ++num_applied_;
}

}  // namespace shoal::ps
