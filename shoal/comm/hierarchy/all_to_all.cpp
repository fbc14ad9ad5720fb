// SPDX-License-Identifier: Apache-2.0
// All-to-all between hosts: a first rank gathers what its host has, host by host, and hands out what comes.
//
//   at a first rank           in    by rank of this host, by rank that it is for
//                             out   by host, by rank of this host, by rank of that host      ══ all_to_all ══
//   of another host           in    by host, by rank of that host, by rank of this host
//                             out   by rank of this host, by rank that it is from
#include <chrono>
#include <cstring>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/hierarchy/collectives.h"

namespace shoal::comm {

static constexpr std::chrono::hours kForever{24 * 365};

namespace {

using Counts = std::vector<std::int64_t>;

// How many elements go from each rank to each, of those that this host knows of.
class Table {
 public:
  explicit Table(int ranks)
      : ranks_(ranks), counts_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}
  std::int64_t& operator()(int from, int to) {
    return counts_[static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) +
                   static_cast<std::size_t>(to)];
  }

 private:
  int ranks_;
  Counts counts_;
};

// Where each pair's elements are in a buffer in which they lie one after the other, in the order of calls.
class Places {
 public:
  Places(int ranks, Table& counts) : counts_(counts), firsts_(ranks) {}
  void add(int from, int to) {
    firsts_(from, to) = end_;
    end_ += counts_(from, to);
  }
  std::int64_t first(int from, int to) { return firsts_(from, to); }
  std::int64_t end() const { return end_; }

 private:
  Table& counts_;
  Table firsts_;
  std::int64_t end_ = 0;
};

}  // namespace

void OnHosts::all_to_all(const Request& request, std::uint64_t number) const {
  const int ranks = members.num_ranks();
  const DType dtype = request.in.dtype;
  const auto wait = [](const std::unique_ptr<Work>& work) { work->wait(kForever); };
  const auto& mine = members.of(host());

  Counts said = request.in_counts,
         all_said(is_first() ? 2 * static_cast<std::size_t>(ranks) * mine.size() : 0);
  said.insert(said.end(), request.out_counts.begin(), request.out_counts.end());
  wait(here.gather({said.data(), std::ssize(said), DType::Int64},
                   {all_said.data(), std::ssize(all_said), DType::Int64}, 0));
  if (!is_first()) {
    Counts sends(mine.size()), receives(mine.size());
    sends[0] = request.in.count;
    wait(here.all_to_all(request.in, {nullptr, 0, dtype}, sends, Counts(mine.size())));
    receives[0] = request.out.count;
    wait(here.all_to_all({nullptr, 0, dtype}, request.out, Counts(mine.size()), receives));
    return;
  }

  Table sent(ranks), taken(ranks);
  for (std::size_t place = 0; place < mine.size(); ++place)
    for (int other = 0; other < ranks; ++other) {
      const auto* row =
          all_said.data() + 2 * static_cast<std::size_t>(ranks) * place + static_cast<std::size_t>(other);
      sent(mine[place], other) = row[0];
      taken(other, mine[place]) = row[ranks];
    }
  // What the ranks of other hosts have for these.
  Counts sends, receives, going, coming;
  for (int other = 0; other < members.num_hosts(); ++other) {
    const auto& its = members.of(other);
    sends.push_back(std::ssize(mine) * std::ssize(its));
    for (const int from : mine)
      for (const int to : its) going.push_back(sent(from, to));
  }
  coming.resize(going.size());
  wait(firsts->all_to_all({going.data(), std::ssize(going), DType::Int64},
                          {coming.data(), std::ssize(coming), DType::Int64}, sends, sends));
  std::size_t at = 0;
  for (int other = 0; other < members.num_hosts(); ++other)
    for (const int from : members.of(other))
      for (const int to : mine) {
        sent(from, to) = coming[at++];
        if (sent(from, to) != taken(from, to))
          fail(ErrorKind::InvalidInput, uneven_pair(number, from, sent(from, to), to, taken(from, to)));
      }

  Places gathered(ranks, sent), out(ranks, sent), in(ranks, sent), handed(ranks, sent);
  Counts by_place, for_place;
  for (const int from : mine) {
    const std::int64_t before = gathered.end();
    for (int to = 0; to < ranks; ++to) gathered.add(from, to);
    by_place.push_back(gathered.end() - before);
  }
  sends.clear();
  for (int other = 0; other < members.num_hosts(); ++other) {
    const std::int64_t out_before = out.end(), in_before = in.end();
    for (const int from : mine)
      for (const int to : members.of(other)) out.add(from, to);
    for (const int from : members.of(other))
      for (const int to : mine) in.add(from, to);
    sends.push_back(out.end() - out_before);
    receives.push_back(in.end() - in_before);
  }
  for (const int to : mine) {
    const std::int64_t before = handed.end();
    for (int from = 0; from < ranks; ++from) handed.add(from, to);
    for_place.push_back(handed.end() - before);
  }

  const std::int64_t element = bytes_of(dtype), most = std::max(gathered.end(), handed.end());
  const auto memory_a = here.allocate(std::max<std::int64_t>(most * element, 1)),
             memory_b = here.allocate(std::max<std::int64_t>(most * element, 1));
  auto* const a = static_cast<std::byte*>(memory_a->data());
  auto* const b = static_cast<std::byte*>(memory_b->data());
  const auto move = [&](const std::byte* from, Places& from_places, std::byte* to, Places& to_places,
                        int source, int target) {
    if (const std::int64_t count = sent(source, target); count > 0)
      std::memcpy(to + to_places.first(source, target) * element,
                  from + from_places.first(source, target) * element,
                  static_cast<std::size_t>(count * element));
  };
  Counts only_first(mine.size());
  only_first[0] = request.in.count;
  wait(here.all_to_all(request.in, {a, gathered.end(), dtype}, only_first, by_place));
  for (const int from : mine)
    for (int to = 0; to < ranks; ++to) move(a, gathered, b, out, from, to);
  wait(firsts->all_to_all({b, out.end(), dtype}, {a, in.end(), dtype}, sends, receives));
  for (const int to : mine)
    for (int from = 0; from < ranks; ++from) move(a, in, b, handed, from, to);
  only_first[0] = request.out.count;
  wait(here.all_to_all({b, handed.end(), dtype}, request.out, for_place, only_first));
}

}  // namespace shoal::comm
