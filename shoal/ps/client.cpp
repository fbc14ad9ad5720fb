// SPDX-License-Identifier: Apache-2.0
// Requests go out to all loops before the first answer is read (lines.h).
#include "shoal/ps/client.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/lines.h"
#include "shoal/ps/row_optimizer.h"
#include "shoal/ps/wire.h"

namespace shoal::ps {

using wire::Head;
using wire::Operation;

// Of what takes as long as a disk does; a server that dies is seen by the end of its connection.
static constexpr std::chrono::hours kOfFiles{1};

struct Client::Remote {
  Definition definition;
  std::size_t width = 0;
  std::vector<std::uint32_t> numbers;  // by part
  std::uint64_t last_round = 0;
  Saved save = {};  // the last one that was begun

  std::size_t row_bytes() const { return width * number_bytes(is_wide(definition.dtype)); }
};

// Rows of which some are under way still.
class Client::Arriving final : public Tables::Pulling {
 public:
  Arriving(Lines& lines, std::span<std::byte> rows) : lines_(lines), rows_(rows) {}
  Arriving(Lines& lines, std::size_t bytes) : lines_(lines), own_(bytes), rows_(own_) {}
  Arriving(const Arriving&) = delete;
  Arriving& operator=(const Arriving&) = delete;
  ~Arriving() override {
    if (parts_ > 0) lines_.finish();  // answers are written here
  }

  std::span<const std::byte> wait() override {
    lines_.settle();
    SHOAL_CHECK(parts_ == 0, PeerLost, "ps: rows asked for did not arrive");
    return rows_;
  }
  void expect() { ++parts_; }
  // `bytes`: of a row here.
  void take(std::span<const std::byte> rows, std::span<const std::uint32_t> places, std::size_t bytes,
            bool in_halves) {
    const std::size_t wanted = places.size() * (in_halves ? bytes / 2 : bytes);
    SHOAL_CHECK(rows.size() == wanted, Corrupt, "ps: a server answered with ", rows.size(),
                " bytes of rows, wanted ", wanted);
    const std::size_t width = bytes / number_bytes(false);
    for (std::size_t i = 0; i < places.size(); ++i) {
      std::byte* const to = rows_.data() + places[i] * bytes;
      if (in_halves)
        widen({reinterpret_cast<const std::uint16_t*>(rows.data()) + i * width, width},
              {reinterpret_cast<float*>(to), width});
      else
        std::memcpy(to, rows.data() + i * bytes, bytes);
    }
    --parts_;
  }

 private:
  Lines& lines_;
  std::vector<std::byte> own_;  // where nobody else has room for them
  const std::span<std::byte> rows_;
  std::size_t parts_ = 0;  // that are under way
};

Client::Client(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options) {
  SHOAL_CHECK(!loops.empty() || options.maps, InvalidInput,
              "ps: a client wants the servers' endpoints, and got none");
  lines_ = std::make_unique<Lines>(key, std::move(loops), options);
  places_.resize(lines_->size());
  keys_.resize(lines_->size());
}

Client::~Client() = default;

Client::TableNumber Client::create(const Definition& definition) {
  check(definition);
  const std::string text = to_text(definition);
  Remote remote = {.definition = definition, .width = width_of(definition)};
  remote.numbers.resize(lines_->size());
  for (std::size_t part = 0; part < lines_->size(); ++part)
    lines_->send(
        part,
        wire::frame(lines_->head(part, Operation::Create, 0, 0), std::array{std::as_bytes(std::span(text))}),
        [&remote, part](const Head& head, std::span<const std::byte> payload) {
          remote.numbers[part] = head.table;
          remote.last_round = std::max(remote.last_round, wire::round_of(payload));
        });
  lines_->settle();
  tables_.push_back(std::move(remote));
  return static_cast<TableNumber>(tables_.size() - 1);
}

std::uint64_t Client::last_round(TableNumber table) const { return tables_.at(table).last_round; }

void Client::split(const Remote& remote, std::span<const std::uint64_t> keys) {
  for (auto& places : places_) places.clear();
  for (auto& some : keys_) some.clear();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t part = shard_of(keys[i], remote.definition.shards) % lines_->size();
    places_[part].push_back(static_cast<std::uint32_t>(i));
    keys_[part].push_back(keys[i]);
  }
}

void Client::pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows,
                  const After& after) {
  const Remote& remote = tables_.at(table);
  SHOAL_CHECK(rows.size() == keys.size() * remote.width &&
                  (keys.empty() || rows.is_wide() == is_wide(remote.definition.dtype)),
              InvalidInput, "ps: a pull of ", keys.size(), " keys of width ", remote.width, " of table ",
              in_quotes(remote.definition.name), " got room for ", rows.size(), " values in ",
              rows.is_wide() ? "f64" : "f32");
  Arriving arriving(*lines_, rows.bytes());
  send_pull(remote, keys, after, arriving);
  lines_->settle();
}

void Client::send_pull(const Remote& remote, std::span<const std::uint64_t> keys, const After& after,
                       Arriving& arriving) {
  split(remote, keys);
  const bool in_halves = in_halves_ && !is_wide(remote.definition.dtype);
  for (std::size_t part = 0; part < lines_->size(); ++part) {
    if (keys_[part].empty()) continue;
    arriving.expect();
    lines_->send(
        part,
        wire::pull_frame(lines_->head(part, Operation::Pull, remote.numbers[part], keys_[part].size()),
                         {.after = after, .keys = keys_[part], .in_halves = in_halves}),
        [places = places_[part], bytes = remote.row_bytes(), in_halves, &arriving](
            const Head&, std::span<const std::byte> payload) {
          arriving.take(payload, places, bytes, in_halves);
        });
  }
}

std::unique_ptr<Tables::Pulling> Client::start_pull(TableNumber table, std::span<const std::uint64_t> keys) {
  const Remote& remote = tables_.at(table);
  auto arriving = std::make_unique<Arriving>(*lines_, keys.size() * remote.row_bytes());
  send_pull(remote, keys, {}, *arriving);
  return arriving;
}

// Of some of them, one row each.
static void append_rows(std::span<const std::byte> rows, std::span<const std::uint32_t> places,
                        std::size_t bytes, std::vector<std::byte>& to) {
  to.resize(places.size() * bytes);
  for (std::size_t i = 0; i < places.size(); ++i)
    std::memcpy(to.data() + i * bytes, rows.data() + places[i] * bytes, bytes);
}

static std::vector<float> some_of(std::span<const float> all, std::span<const std::uint32_t> places) {
  std::vector<float> some;
  if (!all.empty())
    for (const std::uint32_t place : places) some.push_back(all[place]);
  return some;
}

void Client::send_push(const PushTo& to) {
  const auto& [table, push, others] = to;
  const Remote& remote = tables_.at(table);
  Lines::Take take;
  if (others != nullptr) {
    others->clear();
    take = [others = others](const Head& head, std::span<const std::byte> payload) {
      const auto some = wire::keys_of(head, payload);
      others->insert(others->end(), some.begin(), some.end());
    };
  }
  split(remote, push.keys);
  const bool in_halves = in_halves_ && !is_wide(remote.definition.dtype) && push.of == PushOf::Gradients;
  std::vector<std::byte> gradients;
  for (std::size_t part = 0; part < lines_->size(); ++part) {
    if (keys_[part].empty() && push.workers == 0) continue;  // others wait for that number
    append_rows(push.gradients.bytes(), places_[part], remote.row_bytes(), gradients);
    const auto shows = some_of(push.shows, places_[part]), clicks = some_of(push.clicks, places_[part]);
    Push some = push;
    some.keys = keys_[part];
    some.gradients = {gradients, is_wide(remote.definition.dtype)};
    some.shows = shows;
    some.clicks = clicks;
    lines_->send(
        part,
        wire::push_frame(lines_->head(part, Operation::Push, remote.numbers[part], keys_[part].size()),
                         {.push = some, .tells_others = others != nullptr, .in_halves = in_halves}),
        take);
  }
}

void Client::send(std::span<const PushTo> pushes) {
  for (const PushTo& to : pushes)  // or some servers would have applied it when one refuses
    check(to.push, tables_.at(to.table).definition, tables_.at(to.table).width);
  for (const PushTo& to : pushes) send_push(to);
}

void Client::push(std::span<const PushTo> pushes) {
  send(pushes);
  lines_->settle();
}

void Client::settle() { lines_->settle(); }

void Client::refuse(std::uint64_t round, const std::string& why) {
  for (std::size_t part = 0; part < lines_->size(); ++part)
    lines_->send(part, wire::note_frame(lines_->head(part, Operation::Refuse, 0, 0), {round, why}));
  lines_->settle();
}

void Client::put(TableNumber table, std::span<const std::uint64_t> keys, Numbers values) {
  const Remote& remote = tables_.at(table);
  check({.keys = keys, .gradients = values}, remote.definition, remote.width);
  split(remote, keys);
  std::vector<std::byte> rows;
  for (std::size_t part = 0; part < lines_->size(); ++part) {
    if (keys_[part].empty()) continue;
    append_rows(values.bytes(), places_[part], remote.row_bytes(), rows);
    lines_->send(
        part, wire::rows_frame(lines_->head(part, Operation::Put, remote.numbers[part], keys_[part].size()),
                               {keys_[part], {rows, values.is_wide()}}));
  }
  lines_->settle();
}

// Asks every part the same, and gives `each` the payloads.
template <class Each>
void Client::ask_all(TableNumber table, wire::Operation operation, std::span<const std::byte> payload,
                     std::size_t wanted, const Each& each) {
  const auto& numbers = tables_.at(table).numbers;
  for (std::size_t part = 0; part < lines_->size(); ++part)
    lines_->send(part, wire::frame(lines_->head(part, operation, numbers[part], 0), std::array{payload}),
                 [&](const Head&, std::span<const std::byte> answer) {
                   SHOAL_CHECK(answer.size() == wanted, Corrupt, "ps: a server answered with ", answer.size(),
                               " bytes, wanted ", wanted);
                   each(answer);
                 });
  lines_->settle();
}

void Client::clear(TableNumber table) {
  ask_all(table, Operation::Clear, {}, 0, [](std::span<const std::byte>) {});
}

Shrunk Client::shrink(TableNumber table, std::uint32_t day) {
  Shrunk all;
  ask_all(table, Operation::Shrink, std::as_bytes(std::span(&day, 1)), sizeof all,
          [&](std::span<const std::byte> answer) {
            Shrunk one;
            std::memcpy(&one, answer.data(), sizeof one);
            all = {.rows = all.rows + one.rows,
                   .low_score = all.low_score + one.low_score,
                   .unseen = all.unseen + one.unseen,
                   .over_bound = all.over_bound + one.over_bound};
          });
  return all;
}

SaveReport Client::save_or_load(TableNumber table, Operation operation, const wire::Note& note) {
  SaveReport all;
  const auto& numbers = tables_.at(table).numbers;
  for (std::size_t part = 0; part < lines_->size(); ++part)
    lines_->send(
        part, wire::note_frame(lines_->head(part, operation, numbers[part], 0), note),
        [&](const Head&, std::span<const std::byte> answer) { all += wire::report_of(answer); }, kOfFiles);
  lines_->settle();
  return all;
}

void Client::begin_save(TableNumber table, const std::filesystem::path& path, const Saved& as) {
  const auto& numbers = tables_.at(table).numbers;
  tables_.at(table).save = as;
  const std::string absolute = std::filesystem::absolute(path).string();
  for (std::size_t part = 0; part < lines_->size(); ++part)
    lines_->send(part, wire::note_frame(lines_->head(part, Operation::Save, numbers[part], as.number),
                                        {as.origin, absolute}));
  lines_->settle();
}

std::optional<SaveReport> Client::saved(TableNumber table) {
  SaveReport all;
  std::size_t whole = 0;
  const auto& [numbers, as] = std::tie(tables_.at(table).numbers, tables_.at(table).save);
  for (std::size_t part = 0; part < lines_->size(); ++part)
    lines_->send(part,
                 wire::frame(lines_->head(part, Operation::Saved, numbers[part], as.number),
                             std::array{std::as_bytes(std::span(&as.origin, 1))}),
                 [&](const Head& head, std::span<const std::byte> answer) {
                   all += wire::report_of(answer);
                   whole += head.count;
                 });
  lines_->settle();
  return whole == lines_->size() ? std::optional(all) : std::nullopt;
}

SaveReport Client::load(TableNumber table, const std::filesystem::path& path) {
  return save_or_load(table, Operation::Load, {0, std::filesystem::absolute(path).string()});
}

SaveReport Client::export_to(TableNumber table, const std::filesystem::path& path, float min_score) {
  return save_or_load(
      table, Operation::Export,
      {std::bit_cast<std::uint64_t>(double{min_score}), std::filesystem::absolute(path).string()});
}

Saved Client::last_save(TableNumber table) {
  std::vector<Saved> all;
  ask_all(table, Operation::LastSave, {}, 2 * sizeof(std::uint64_t), [&](std::span<const std::byte> answer) {
    std::array<std::uint64_t, 2> last = {};
    std::memcpy(last.data(), answer.data(), sizeof last);
    all.push_back({.origin = last[0], .number = static_cast<std::uint32_t>(last[1])});
  });
  const bool is_one = std::ranges::all_of(all, [&](const Saved& one) { return one == all.front(); });
  return is_one ? all.front() : Saved();
}

std::vector<std::vector<TableState>> Client::describe() {
  std::vector<std::vector<TableState>> all(lines_->size());
  for (std::size_t part = 0; part < lines_->size(); ++part)
    lines_->send(part, wire::frame(lines_->head(part, Operation::Describe, 0, 0), {}),
                 [&all, part](const Head& head, std::span<const std::byte> payload) {
                   all[part] = wire::states_of(head, payload);
                 });
  lines_->settle();
  return all;
}

std::pair<std::uint64_t, std::int64_t> Client::digest(TableNumber table) {
  std::pair<std::uint64_t, std::int64_t> all = {0, 0};
  ask_all(table, Operation::Digest, {}, 2 * sizeof(std::uint64_t), [&](std::span<const std::byte> answer) {
    std::array<std::uint64_t, 2> one;
    std::memcpy(one.data(), answer.data(), sizeof one);
    all.first += one[0];
    all.second += static_cast<std::int64_t>(one[1]);
  });
  return all;
}

}  // namespace shoal::ps
