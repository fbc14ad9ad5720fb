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
  std::vector<std::vector<int>> groups;
  for (std::size_t at = call.find('['); at != std::string::npos; at = call.find('[', at + 1)) {
    std::istringstream words(call.substr(at + 1));
    groups.emplace_back();
    char separator = ',';
    for (int rank = 0; separator == ',' && words >> rank >> separator;) groups.back().push_back(rank);
  }
  std::vector<int> named;
  constexpr std::string_view kRank = "rank ";
  for (std::size_t at = error.find(kRank); at != std::string::npos; at = error.find(kRank, at + 1)) {
    int rank = -1;
    std::istringstream(error.substr(at + kRank.size())) >> rank;
    for (auto group = groups.rbegin(); group != groups.rend(); ++group)
      rank =
          rank >= 0 && rank < static_cast<int>(group->size()) ? (*group)[static_cast<std::size_t>(rank)] : -1;
    if (rank >= 0 && std::ranges::find(named, rank) == named.end()) named.push_back(rank);
  }
  return named;
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
  if (ended && left && is_about_others(*ended))
    return one(*left, concat(left->how, ", while others waited for it"));
  if (ended && ended->kind == ErrorKind::Timeout) {
    if (const auto missing = ranks_not_come(ended->error); !missing.empty())
      return {missing, "did not call join, and others waited for it"};
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
