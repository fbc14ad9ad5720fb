// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/left_out.h"

#include <algorithm>
#include <ranges>
#include <sstream>
#include <utility>
#include <vector>

namespace shoal::elastic {

using comm::Op;
using Records = std::vector<FlightRecord>;

// How many calls before a missing one have to be those of the step before too.
static constexpr std::size_t kBefore = 2;

static std::vector<std::vector<int>> members_of(std::string_view group) {
  std::vector<std::vector<int>> all;
  for (std::size_t at = group.find('['); at != std::string_view::npos; at = group.find('[', at + 1)) {
    std::istringstream words{std::string(group.substr(at + 1))};
    all.emplace_back();
    char separator = ',';
    for (int rank = 0; separator == ',' && words >> rank >> separator;) all.back().push_back(rank);
  }
  return all;
}

int job_rank_of(std::string_view group, int rank) {
  for (const std::vector<int>& members : members_of(group) | std::views::reverse)
    rank = rank >= 0 && std::cmp_less(rank, members.size()) ? members[static_cast<std::size_t>(rank)] : -1;
  return rank;
}

int group_rank_of(std::string_view group, int rank) {
  for (const std::vector<int>& members : members_of(group)) {
    const auto found = std::ranges::find(members, rank);
    if (found == members.end()) return -1;
    rank = static_cast<int>(found - members.begin());
  }
  return rank;
}

static bool is_same(const FlightRecord& a, const FlightRecord& b) {
  return a.call == b.call && a.group == b.group;
}

static bool is_tagged_send(const FlightRecord& record) {
  return record.call.tag.message != 0 && record.call.op == Op::Send;
}

// Whether a call is another one, of that micro-batch.
static bool is_same(const FlightRecord& call, const FlightRecord& other, std::uint16_t microbatch) {
  comm::Call wanted = other.call;
  wanted.tag.microbatch = microbatch;
  return call.call == wanted && call.group == other.group;
}

namespace {
struct Missing {
  comm::Call send;
  std::string group;
  std::size_t before = 0;  // the call before which it would be
};

struct Held {
  std::optional<Missing> missing;
  bool is_same = false;  // nothing is
};
}  // namespace

// Holds the last calls against those that end with the one at `last`, from the newest on. Whole: the rank made no
// calls before.
static Held held_against(const Records& calls, std::size_t last, bool is_whole) {
  std::optional<Missing> missing;
  std::size_t now = calls.size(), matched = 0;
  for (std::size_t then = last + 1; then > 0; --then) {
    if (!missing && now == last) return {.is_same = true};
    const FlightRecord& call = calls[then - 1];
    if (is_same(calls[now - 1], call)) {
      --now;
      if (++matched >= kBefore && missing) return {.missing = missing};
    } else if (!missing && is_tagged_send(call)) {
      missing = {call.call, call.group, now};
      matched = 0;
    } else {
      return {};
    }
  }
  return {.missing = is_whole ? missing : std::nullopt};
}

// By the step before: the calls since it are the same, but for one.
static std::optional<Missing> missing_since_last_step(const Records& calls, bool is_whole) {
  bool has_messages = false;  // a step has
  for (std::size_t at = calls.size() - 1; at-- > 0;) {
    has_messages = has_messages || calls[at + 1].call.tag.message != 0;
    if (!is_same(calls[at], calls.back())) continue;
    const auto [missing, same] = held_against(calls, at, is_whole);
    if (missing || (same && has_messages)) return missing;
  }
  return {};
}

// By other micro-batches: of each kind they come in their order, and of one micro-batch in that of another one.
static std::optional<Missing> missing_in_first_step(const Records& calls) {
  const auto is_there = [&](const FlightRecord& send, std::uint16_t microbatch, std::size_t end) {
    return std::ranges::any_of(calls | std::views::take(end),
                               [&](const FlightRecord& call) { return is_same(call, send, microbatch); });
  };
  const auto missing = [](const FlightRecord& send, int microbatch, std::size_t before) {
    Missing found = {send.call, send.group, before};
    found.send.tag.microbatch = static_cast<std::uint16_t>(microbatch);
    return found;
  };
  for (std::size_t at = 0; at < calls.size(); ++at) {
    const FlightRecord& call = calls[at];
    if (call.call.tag.message == 0) continue;
    const std::uint16_t microbatch = call.call.tag.microbatch;
    if (is_tagged_send(call) && microbatch > 0)
      if (!is_there(call, static_cast<std::uint16_t>(microbatch - 1), at))
        return missing(call, microbatch - 1, at);
    for (std::size_t like = 0; like < at; ++like) {
      const std::uint16_t other = calls[like].call.tag.microbatch;
      if (other == microbatch || !is_same(calls[like], call, other)) continue;
      for (const FlightRecord& earlier : calls | std::views::take(like))
        if (is_tagged_send(earlier) && earlier.call.tag.microbatch == other)
          if (!is_there(earlier, microbatch, at)) return missing(earlier, microbatch, at);
    }
  }
  return {};
}

std::optional<LeftOut> left_out(const FlightLog& log, int rank) {
  const Records& calls = log.records;
  if (calls.empty()) return {};
  const bool is_first = std::ranges::count_if(calls, [&](const FlightRecord& call) {
                          return is_same(call, calls.back());
                        }) == 1;
  const bool is_whole = log.num_calls == calls.size();
  std::optional<Missing> missing;
  if (!is_first) missing = missing_since_last_step(calls, is_whole);
  if (is_first && is_whole) missing = missing_in_first_step(calls);
  if (!missing) return {};
  const auto& [send, group, before] = *missing;
  std::uint64_t number = 0;  // it would have had: that of the next one, or the one after the last
  for (std::size_t at = 0; at < calls.size(); ++at) {
    const FlightRecord& call = calls[at];
    if (call.call.op != Op::Send || call.call.peer != send.peer || call.group != group) continue;
    number = at < before ? call.number + 1 : call.number;
    if (at >= before) break;
  }
  comm::Call receive = send;
  receive.op = Op::Receive;
  receive.peer = group_rank_of(group, rank);
  return LeftOut{.to = job_rank_of(group, send.peer),
                 .call = concat("call ", number, group.empty() ? "" : " of " + group),
                 .receive = describe(receive),
                 .send = describe(send)};
}

}  // namespace shoal::elastic
