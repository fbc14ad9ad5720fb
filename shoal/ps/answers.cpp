// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/answers.h"

#include <algorithm>
#include <array>
#include <new>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/row_optimizer.h"

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

static bool changes(Operation operation) {  // and must not happen twice
  return operation == Operation::Push || operation == Operation::Put || operation == Operation::Clear ||
         operation == Operation::Shrink || operation == Operation::Load;
}

bool Answers::answer(const wire::Head& head, std::span<const std::byte> payload,
                     std::vector<std::byte>& reply) {
  wire::check_payload(head, payload);
  if (answer_again(head, reply)) return true;
  std::uint64_t last = 0;
  const std::size_t num_tables = tables_.size();
  if (changes(head.operation)) {
    const Remembered& before = remembered_[head.client];
    if (!before.empty()) last = before.back().sequence;
  }
  try {
    SHOAL_CHECK(head.epoch == epoch_, PeerLost, "ps: epoch ", head.epoch, " of this job is over; it is at ",
                epoch_);
    SHOAL_CHECK(last < head.sequence, InvalidInput, "ps: request ", head.sequence,
                " of a client whose request ", last, " was done already");
    if (!answer_checked(head, payload, reply)) return answer_again(head, reply);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Corrupt) throw;
    reply = wire::failure(head, error);
  } catch (const std::bad_alloc&) {
    reply = wire::failure(head, Error(ErrorKind::Infeasible, "ps: the server is out of memory"));
  }
  if (tables_.size() != num_tables || head.operation == Operation::Clear ||
      head.operation == Operation::Shrink || head.operation == Operation::Load)
    ++num_whole_;
  if (changes(head.operation) && last < head.sequence) remember(head.client, head.sequence, reply);
  return true;
}

bool Answers::is_history(Operation operation) {
  return is_rows(operation) || changes(operation) || operation == Operation::Create ||
         operation == Operation::Refuse || operation == Operation::Save;
}

void Answers::follow(const wire::Head& head, std::span<const std::byte> payload) {
  std::vector<std::byte> remembered;  // where it has to be
  if (is_rows(head.operation)) {
    wire::check_payload(head, payload);
    head.operation == Operation::State ? take_state(payload) : take_rows(payload);
    return;
  }
  if (head.operation != Operation::Save) {
    answer(head, payload, remembered);
    return;
  }
  wire::check_payload(head, payload);
  if (head.table >= tables_.size()) return;
  Table& whole = *tables_[head.table];  // the primary writes the file
  const Saved as = {.origin = wire::note_of(payload).number, .number = head.count};
  const bool is_next = as.number == 0 || whole.saved() == Saved{.origin = as.origin, .number = as.number - 1};
  if (is_next) whole.begin_save(as, as.number > 0, {});  // else what changed since its own one stays known
}

// What changed something is answered as before.
bool Answers::answer_again(const wire::Head& head, std::vector<std::byte>& reply) const {
  const auto of = changes(head.operation) ? remembered_.find(head.client) : remembered_.end();
  if (of == remembered_.end()) return false;
  const auto same = std::ranges::find(of->second, head.sequence, &Answered::sequence);
  if (same == of->second.end()) return false;
  reply = same->reply;
  return true;
}

void Answers::remember(std::uint64_t client, std::uint64_t sequence, std::vector<std::byte> reply) {
  Remembered& all = remembered_[client];
  all.push_back({.sequence = sequence, .reply = std::move(reply)});
  if (all.size() > wire::kMostUnderWay) all.pop_front();
}

bool Answers::answer_checked(const wire::Head& head, std::span<const std::byte> payload,
                             std::vector<std::byte>& reply) {
  wire::Head done = reply_to(head);
  switch (head.operation) {
    case Operation::Create: {
      done.table = create(payload);
      const auto& rounds = rounds_[done.table];
      const std::uint64_t last =
          std::max(refused_ ? refused_->round : 0, rounds.empty() ? 0 : *std::ranges::max_element(rounds));
      put_few(reply, done, std::as_bytes(std::span(&last, 1)));
      return true;
    }
    case Operation::Pull: return pull(head, payload, reply);
    case Operation::Push:
      if (!push(head, payload)) return false;
      done.count = 0;  // keys of others
      put_few(reply, done, {});
      return true;
    case Operation::Refuse:
      refuse(wire::note_of(payload));
      put_few(reply, done, {});
      return true;
    case Operation::Put:
      put(head, payload);
      put_few(reply, done, {});
      return true;
    case Operation::Clear:
      table(head).clear();
      put_few(reply, done, {});
      return true;
    case Operation::Shrink: {
      Table& whole = table(head);
      SHOAL_CHECK(keeping_.empty() || keeping_.contains(head.client), InvalidInput, "ps: table ",
                  in_quotes(whole.definition().name),
                  ": workers keep rows of it (ps.prefetch, ps.mode=geo), and would not see what expires. "
                  "Remedy: ps.day_steps, "
                  "which ends days between two steps of theirs");
      whole.set_day(wire::day_of(payload));
      const Shrunk shrunk = whole.shrink(parts_);
      put_few(reply, done, std::as_bytes(std::span(&shrunk, 1)));
      return true;
    }
    case Operation::Describe: reply = wire::states_frame(done, states()); return true;
    case Operation::Save:
      begin_save(head, wire::note_of(payload));
      put_few(reply, done, {});
      return true;
    case Operation::Saved: {
      SaveReport report;
      done.count = saved(head, wire::round_of(payload), report) ? 1 : 0;
      put_few(reply, done, std::as_bytes(std::span(&report, 1)));
      return true;
    }
    case Operation::LastSave: {
      const Saved& as = table(head).saved();
      const std::array<std::uint64_t, 2> last = {as.origin, as.number};
      put_few(reply, done, std::as_bytes(std::span(last)));
      return true;
    }
    case Operation::Export:
    case Operation::Load: {
      const SaveReport report = save_or_load(head, wire::note_of(payload));
      put_few(reply, done, std::as_bytes(std::span(&report, 1)));
      return true;
    }
    case Operation::Digest: {
      const std::array<std::uint64_t, 2> digest = {table(head).digest(),
                                                   static_cast<std::uint64_t>(table(head).num_rows())};
      put_few(reply, done, std::as_bytes(std::span(digest)));
      return true;
    }
    case Operation::Done:
    case Operation::Failed:
    case Operation::Older:
    case Operation::Follow:
    case Operation::Share:
    case Operation::State:
    case Operation::Rows: break;
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
    SHOAL_CHECK(differs.empty(), InvalidInput, "ps: table ", in_quotes(here.name),
                " is another one on the server than at this worker: ", differs);
    return static_cast<std::uint32_t>(i);
  }
  SHOAL_CHECK(tables_.size() < kMostTables, InvalidInput, "ps: there are ", tables_.size(),
              " tables already");
  SHOAL_CHECK(wanted.shards >= parts_, InvalidInput, "ps: table ", in_quotes(wanted.name), ": shards is ",
              wanted.shards, ", and keys are in ", parts_, " parts, each of some shards");
  tables_.push_back(std::make_unique<Table>(std::move(wanted), cold_ ? cold_->of_part(parts_) : Cold()));
  joint_.emplace_back();
  rounds_.emplace_back();
  asked_.emplace_back();
  return static_cast<std::uint32_t>(tables_.size() - 1);
}

Table& Answers::table(const wire::Head& head) {
  SHOAL_CHECK(head.table < tables_.size(), InvalidInput, "ps: there is no table number ", head.table,
              "; create it first");
  return *tables_[head.table];
}

void Answers::check_keys(const Table& table, std::span<const std::uint64_t> keys) const {
  if (parts_ == 1) return;
  for (const std::uint64_t key : keys)
    SHOAL_CHECK(table.shard_of(key) % parts_ == part_, InvalidInput, "ps: table ",
                in_quotes(table.definition().name), ": key ", key, " belongs to part ",
                table.shard_of(key) % parts_, ", and was sent to ", part_,
                "; do client and servers agree on the number of parts?");
}

// False: it waits for pushes of other workers.
bool Answers::pull(const wire::Head& head, std::span<const std::byte> payload,
                   std::vector<std::byte>& reply) {
  const Table& from = table(head);
  const auto [after, keys, in_halves] = wire::pull_of(head, payload);
  check_keys(from, keys);
  const auto& rounds = rounds_[head.table];
  if (after.round > 0 && (rounds.size() < after.workers ||
                          std::ranges::any_of(std::span(rounds).first(after.workers),
                                              [&](std::uint64_t round) { return round < after.round; })))
    return false;
  const wire::Head done = reply_to(head);
  const bool wide = is_wide(from.definition().dtype);
  SHOAL_CHECK(!in_halves || !wide, InvalidInput, "ps: table ", in_quotes(from.definition().name),
              " is of float64, and rows were asked for in bfloat16");
  const std::size_t numbers = keys.size() * from.width();
  const std::size_t bytes = numbers * (in_halves ? sizeof(std::uint16_t) : number_bytes(wide));
  SHOAL_CHECK(bytes <= wire::kMostBytes, InvalidInput, "ps: rows of ", keys.size(),
              " keys are more than goes at once; pull fewer");
  reply.resize(sizeof done + bytes);
  const auto rows = std::span(reply).subspan(sizeof done);
  if (in_halves) {
    rows_.resize(numbers);
    from.pull(keys, rows_);
    narrow_to_nearest(rows_, {reinterpret_cast<std::uint16_t*>(rows.data()), numbers});
  } else {
    from.pull(keys, WritableNumbers(rows, wide));
  }
  asked_[head.table].pulled += keys.size();
  wire::seal(reply, done);
  return true;
}

// The same.
bool Answers::push(const wire::Head& head, std::span<const std::byte> payload) {
  Table& to = table(head);
  const auto asked = wire::push_of(head, payload, to.width(), is_wide(to.definition().dtype));
  const Push& push = asked.push;
  const bool tells_others = asked.tells_others;
  check_keys(to, push.keys);
  if (tells_others || push.of == PushOf::Differences) keeping_.insert(head.client);
  if (push.workers == 0) {
    to.push(push);
    asked_[head.table].pushed += push.keys.size();
    ++num_applied_;
    return true;
  }
  auto& rounds = rounds_[head.table];
  if (rounds.size() < push.workers) rounds.resize(push.workers);
  if (push.round <= rounds[push.worker]) return true;  // it is applied
  if (!push.is_joint) {
    to.push(push);
    asked_[head.table].pushed += push.keys.size();
    ++num_applied_;
    rounds[push.worker] = push.round;
    wakes_();
    return true;
  }
  SHOAL_CHECK(!refused_ || refused_->round != push.round, InvalidInput, refused_->why);
  check(push, to.definition(), to.width());
  JointPush& joint = joint_[head.table];
  joint.add(push, {.client = head.client, .sequence = head.sequence, .tells_others = tells_others},
            to.definition().name);
  if (joint.is_complete()) push_jointly(head.table);
  return false;
}

// All parts are there, and all are answered.
void Answers::push_jointly(std::uint32_t table) {
  JointPush& joint = joint_[table];
  std::optional<Error> failure;
  try {
    const Push sum = joint.sum(tables_[table]->width());
    tables_[table]->push(sum);
    asked_[table].pushed += sum.keys.size();
    ++num_applied_;
    std::ranges::fill(rounds_[table], joint.round());
  } catch (const Error& error) {
    failure = error;
  }
  for (const JointPush::Maker& maker : joint.makers()) {
    wire::Head done = {.table = table, .epoch = epoch_, .client = maker.client, .sequence = maker.sequence};
    std::vector<std::byte> reply;
    if (failure) {
      reply = wire::failure(done, *failure);
    } else {
      const auto others = maker.tells_others ? joint.others_of(maker) : std::vector<std::uint64_t>();
      done.count = static_cast<std::uint32_t>(others.size());
      try {
        put_few(reply, done, std::as_bytes(std::span(others)));
      } catch (const Error& error) {  // more than a frame holds
        reply = wire::failure(done, error);
      }
    }
    remember(maker.client, maker.sequence, std::move(reply));
  }
  joint.clear();
  wakes_();
}

void Answers::put(const wire::Head& head, std::span<const std::byte> payload) {
  Table& to = table(head);
  const auto [keys, values] = wire::rows_of(head, payload, to.width(), is_wide(to.definition().dtype));
  check_keys(to, keys);
  to.put(keys, values);
}

std::vector<TableState> Answers::states() const {
  std::vector<TableState> all;
  for (std::size_t table = 0; table < tables_.size(); ++table)
    all.push_back({.definition = to_text(tables_[table]->definition()),
                   .day = tables_[table]->day(),
                   .rows = tables_[table]->num_rows(),
                   .cold_rows = tables_[table]->num_cold_rows(),
                   .bytes = tables_[table]->memory_bytes(),
                   .pulled = asked_[table].pulled,
                   .pushed = asked_[table].pushed});
  return all;
}

// Parts that wait are answered with it, and those that come.
void Answers::refuse(const wire::Note& refusal) {
  const Error error(ErrorKind::InvalidInput, std::string(refusal.text));
  refused_ = {.round = refusal.number, .why = error.what()};
  for (std::size_t table = 0; table < joint_.size(); ++table) {
    if (joint_[table].is_empty() || joint_[table].round() != refusal.number) continue;
    for (const JointPush::Maker& maker : joint_[table].makers()) {
      const wire::Head head = {.table = static_cast<std::uint32_t>(table),
                               .epoch = epoch_,
                               .client = maker.client,
                               .sequence = maker.sequence};
      remember(maker.client, maker.sequence, wire::failure(head, error));
    }
    joint_[table].clear();
  }
  wakes_();
}

}  // namespace shoal::ps
