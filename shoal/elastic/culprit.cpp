// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/culprit.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

namespace shoal::elastic {

using nlohmann::json;

static bool is_about_others(const RankReport& rank) {
  return rank.kind == ErrorKind::PeerLost || rank.kind == ErrorKind::Timeout;
}

static bool compares_calls(const RankReport& rank) {
  return rank.kind == ErrorKind::InvalidInput && rank.error.starts_with("comm: call ");
}

static std::string list_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += concat(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

static bool is_message(const std::string& call) {
  return call.starts_with("send(") || call.starts_with("receive(");
}

// What an error of compared calls is about, "call 17 of [0,1]" where it says "comm: call 17: rank 0
// barrier(), …": ranks that are ahead, or in another group, are in other calls.
static std::string compared_call(std::span<const RankReport> ranks, const std::string& error) {
  constexpr std::string_view kBefore = "comm: ";
  std::string number = error.substr(kBefore.size(), error.find(':', kBefore.size()) - kBefore.size());
  for (const RankReport& rank : ranks)
    for (auto call = rank.calls.rbegin(); call != rank.calls.rend(); ++call)
      if ((call->first == number || call->first.starts_with(number + " of ")) &&
          error.find(call->second) != std::string::npos)
        return call->first;
  return number;
}

// The ranks that an error names: "rank 1" of the group "[0,2]" is the job's rank 2.
static std::vector<int> ranks_named(const std::string& error, const std::string& call) {
  std::vector<int> named;
  constexpr std::string_view kRank = "rank ";
  for (std::size_t at = error.find(kRank); at != std::string::npos; at = error.find(kRank, at + 1)) {
    int rank = -1;
    std::istringstream(error.substr(at + kRank.size())) >> rank;
    rank = job_rank_of(call, rank);
    if (rank >= 0 && std::ranges::find(named, rank) == named.end()) named.push_back(rank);
  }
  return named;
}

// A rank that has left out the very message that another one has asked it for.
static std::optional<Culprit> leaver_of(std::span<const RankReport> ranks) {
  for (const RankReport& rank : ranks)
    for (const RankReport& other : ranks) {
      if (!rank.left_out || other.rank != rank.left_out->to) continue;
      const auto& [to, call, receive, send] = *rank.left_out;
      if (std::ranges::find(other.calls, std::pair(call, receive)) == other.calls.end()) continue;
      return Culprit{{rank.rank},
                     concat("left out ", send, ", for which rank ", to, " waits in ", call, ", ", receive)};
    }
  return {};
}

// Of ranks whose calls were compared and differ: those in the minority; all where there is none.
static Culprit odd_ones_out(std::span<const RankReport> ranks, const RankReport& first) {
  const std::string compared = compared_call(ranks, first.error);
  std::map<std::string, std::vector<int>> by_call;
  for (const RankReport& rank : ranks)
    for (const auto& [call, what] : rank.calls)
      if (call == compared && !is_message(what)) by_call[what].push_back(rank.rank);
  const bool is_about_messages =
      first.error.find(" send(") != std::string::npos || first.error.find(" receive(") != std::string::npos;
  Culprit culprit = {.why = first.error};
  if (is_about_messages)
    if (const auto leaver = leaver_of(ranks))
      return {leaver->ranks, concat(leaver->why, " (", first.error, ")")};
  if (by_call.size() < 2 || is_about_messages) {
    culprit.ranks = ranks_named(first.error, compared);
  } else {
    std::size_t most = 0;
    for (const auto& [call, who] : by_call) most = std::max(most, who.size());
    const bool is_clear =
        std::ranges::count_if(by_call, [&](const auto& row) { return row.second.size() == most; }) == 1;
    for (const auto& [call, who] : by_call)
      if (!is_clear || who.size() < most) culprit.ranks.insert(culprit.ranks.end(), who.begin(), who.end());
  }
  std::ranges::sort(culprit.ranks);
  if (culprit.ranks.empty()) culprit.ranks = {first.rank};
  return culprit;
}

// Of an error of `meet`, which says "… did not come within 60 s: 1, 3; …".
static std::vector<int> ranks_not_come(const std::string& error) {
  constexpr std::string_view kBefore = " did not come within ";
  std::vector<int> ranks;
  const std::size_t at = error.find(kBefore);
  if (at == std::string::npos) return ranks;
  std::istringstream words(error.substr(std::min(error.size(), error.find(':', at)) + 1));
  char separator = ',';
  for (int rank = 0; separator == ',' && words >> rank >> separator;) ranks.push_back(rank);
  return ranks;
}

// Whether a rank is in a call in which the other one has not come yet.
static bool waits_for(const RankReport& rank, const RankReport& other) {
  if (!rank.current.starts_with("call ")) return false;
  const std::size_t comma = rank.current.find(", ");
  const std::string call = rank.current.substr(0, comma), what = rank.current.substr(comma + 2);
  const auto is_between = [&](const std::string& message, const RankReport& from, const RankReport& to) {
    const std::string peer = message.starts_with("send(") ? concat(", to ", group_rank_of(call, to.rank))
                                                          : concat(", from ", group_rank_of(call, from.rank));
    return message.find(peer + ")") != std::string::npos || message.find(peer + ",") != std::string::npos;
  };
  const auto made = [&](auto is_other_end) {
    return std::ranges::any_of(
        other.calls, [&](const auto& its) { return its.first == call && is_other_end(its.second); });
  };
  if (group_rank_of(call, other.rank) < 0) return false;
  if (!is_message(what)) return !made([](const std::string& its) { return !is_message(its); });
  const bool sends = what.starts_with("send(");
  const RankReport &from = sends ? rank : other, &to = sends ? other : rank;
  return is_between(what, from, to) && !made([&](const std::string& its) {
           return is_message(its) && its.starts_with("send(") != sends && is_between(its, from, to);
         });
}

std::optional<Culprit> standstill_of(std::span<const RankReport> ranks) {
  const auto leaver = leaver_of(ranks);
  if (!leaver) return {};
  const RankReport& left = *std::ranges::find(ranks, leaver->ranks[0], &RankReport::rank);
  const RankReport& asks = *std::ranges::find(ranks, left.left_out->to, &RankReport::rank);
  const bool ended = std::ranges::any_of(ranks, &RankReport::ended);
  const bool is_both = left.waits && asks.waits && waits_for(left, asks) && waits_for(asks, left);
  return is_both && !ended ? leaver : std::nullopt;
}

static std::optional<Culprit> two_that_wait(std::span<const RankReport> ranks) {
  for (const RankReport& rank : ranks)
    for (const RankReport& other : ranks)
      if (rank.rank < other.rank && waits_for(rank, other) && waits_for(other, rank))
        return Culprit{{rank.rank, other.rank},
                       concat("rank ", rank.rank, " waits for rank ", other.rank, " in ", rank.current,
                              ", and rank ", other.rank, " for rank ", rank.rank, " in ", other.current)};
  return {};
}

Culprit culprit_of(std::span<const RankReport> ranks) {
  const RankReport* own = nullptr;
  const RankReport* left = nullptr;
  const RankReport* ended = nullptr;
  const auto earlier = [](const RankReport* known, const RankReport& rank) {
    return !known || rank.when_ms < known->when_ms;
  };
  for (const RankReport& rank : ranks) {
    if (!rank.ended) continue;
    const bool failed = rank.by_signal || rank.code != 0;
    if (failed && earlier(ended, rank)) ended = &rank;
    if (failed && !is_about_others(rank) && earlier(own, rank)) own = &rank;
    if (!failed && earlier(left, rank)) left = &rank;
  }
  const auto one = [](const RankReport& rank, const std::string& why) { return Culprit{{rank.rank}, why}; };
  if (own && compares_calls(*own)) return odd_ones_out(ranks, *own);
  if (own) return one(*own, own->how);
  const auto stopped = std::ranges::find_if(ranks, &RankReport::stopped);
  if (stopped != ranks.end()) return one(*stopped, "stopped, while others waited for it");
  if (const auto standstill = standstill_of(ranks)) return *standstill;
  if (ended && left && is_about_others(*ended))
    return one(*left, concat(left->how, ", while others waited for it"));
  if (ended && ended->kind == ErrorKind::Timeout) {
    if (const auto missing = ranks_not_come(ended->error); !missing.empty())
      return {missing, "did not call join, and others waited for it"};
    if (const auto leaver = leaver_of(ranks)) return *leaver;
    if (const auto two = two_that_wait(ranks)) return *two;
    std::uint64_t fewest = ended->num_calls;
    for (const RankReport& rank : ranks) fewest = std::min(fewest, rank.num_calls);
    if (fewest < ended->num_calls) {
      Culprit behind = {.why = concat("made ", fewest, " calls, others wait in ",
                                      ended->current.empty() ? ended->last : ended->current)};
      for (const RankReport& rank : ranks)
        if (rank.num_calls == fewest) behind.ranks.push_back(rank.rank);
      return behind;
    }
  }
  if (ended) return one(*ended, ended->how);
  return {.why = "no rank has failed"};
}

static std::string where_of(const RankReport& rank) {
  if (!rank.current.empty()) return concat(", in ", rank.current);
  return rank.last.empty() ? "" : concat(", after ", rank.last);
}

std::string verdict_of(const Culprit& culprit) {
  return culprit.ranks.empty() ? culprit.why : concat(list_of(culprit.ranks), " failed first: ", culprit.why);
}

std::string summary_of(std::span<const RankReport> ranks, const Culprit& culprit) {
  std::string text = concat("shoal run: ", verdict_of(culprit), "\n");
  const auto is_culprit = [&](const RankReport& rank) {
    return std::ranges::find(culprit.ranks, rank.rank) != culprit.ranks.end();
  };
  for (const bool first : {true, false})
    for (const RankReport& rank : ranks) {
      if (is_culprit(rank) != first) continue;
      text += concat("  rank ", rank.rank, " (host ", rank.host, ", process ", rank.process, "): ", rank.how,
                     where_of(rank), "\n");
      if (!rank.error.empty()) text += concat("    last error: ", rank.error, "\n");
      if (!first || rank.tail.empty()) continue;
      text += "    the end of its output:\n";
      for (const std::string& line : rank.tail) text += concat("      ", line, "\n");
    }
  return text;
}

static json left_out_as_json(const RankReport& rank) {
  if (!rank.left_out) return nullptr;
  const auto& [to, call, receive, send] = *rank.left_out;
  return {{"to", to}, {"call", call}, {"receive", receive}, {"send", send}};
}

std::string to_text(std::span<const RankReport> ranks) {
  json all = json::array();
  for (const RankReport& rank : ranks)
    all.push_back({{"rank", rank.rank},
                   {"host", rank.host},
                   {"process", rank.process},
                   {"ended", rank.ended},
                   {"by_signal", rank.by_signal},
                   {"code", rank.code},
                   {"how", rank.how},
                   {"when_ms", rank.when_ms},
                   {"stopped", rank.stopped},
                   {"num_calls", rank.num_calls},
                   {"kind", rank.kind ? static_cast<int>(*rank.kind) : -1},
                   {"error", rank.error},
                   {"last", rank.last},
                   {"current", rank.current},
                   {"calls", rank.calls},
                   {"waits", rank.waits},
                   {"left_out", left_out_as_json(rank)},
                   {"tail", rank.tail}});
  // What a rank printed need not be UTF-8.
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<RankReport> reports_of(const std::string& text) {
  std::vector<RankReport> ranks;
  try {
    for (const json& row : json::parse(text)) {
      RankReport rank;
      row.at("rank").get_to(rank.rank);
      row.at("host").get_to(rank.host);
      row.at("process").get_to(rank.process);
      row.at("ended").get_to(rank.ended);
      row.at("by_signal").get_to(rank.by_signal);
      row.at("code").get_to(rank.code);
      row.at("how").get_to(rank.how);
      row.at("when_ms").get_to(rank.when_ms);
      row.at("stopped").get_to(rank.stopped);
      row.at("num_calls").get_to(rank.num_calls);
      if (const int kind = row.at("kind").get<int>(); kind >= 0) rank.kind = static_cast<ErrorKind>(kind);
      row.at("error").get_to(rank.error);
      row.at("last").get_to(rank.last);
      row.at("current").get_to(rank.current);
      row.at("calls").get_to(rank.calls);
      row.at("waits").get_to(rank.waits);
      if (const json& left_out = row.at("left_out"); !left_out.is_null())
        rank.left_out = {.to = left_out.at("to").get<int>(),
                         .call = left_out.at("call").get<std::string>(),
                         .receive = left_out.at("receive").get<std::string>(),
                         .send = left_out.at("send").get<std::string>()};
      row.at("tail").get_to(rank.tail);
      ranks.push_back(std::move(rank));
    }
  } catch (const json::exception& error) {
    fail(ErrorKind::Corrupt, "run: another host's report cannot be read: ", error.what());
  }
  return ranks;
}

Restart decide_restart(int restarts, int max_restarts, std::span<const RankReport> ranks,
                       const Culprit& culprit) {
  if (max_restarts == 0) return {};
  for (const RankReport& rank : ranks)
    if (rank.ended && !rank.by_signal && rank.code == 2 &&
        std::ranges::find(culprit.ranks, rank.rank) != culprit.ranks.end())
      return {.why = concat("not started again: rank ", rank.rank, " ended with exit code 2, wrong use")};
  if (restarts >= max_restarts)
    return {.why = concat("not started again: ", restarts, " restarts were made")};
  return {.again = true, .why = concat("restart ", restarts + 1, " of ", max_restarts)};
}

}  // namespace shoal::elastic
