// SPDX-License-Identifier: Apache-2.0
// Tables of a job that runs: shoal ps top | save | shrink.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/cli/ps_jobs.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/running.h"

namespace shoal::cli {

namespace fs = std::filesystem;
using ps::TableState;

// Of all tables, by part; what is on all parts, by name.
using States = std::vector<std::vector<TableState>>;

static void add(TableState& to, const TableState& from) {
  to.definition = from.definition;
  to.day = std::max(to.day, from.day);
  to.rows += from.rows;
  to.cold_rows += from.cold_rows;
  to.bytes += from.bytes;
  to.pulled += from.pulled;
  to.pushed += from.pushed;
}

static std::map<std::string, TableState> by_name(const States& states) {
  std::map<std::string, TableState> all;
  for (const auto& of_part : states)
    for (const TableState& state : of_part) add(all[ps::definition_from_text(state.definition).name], state);
  return all;
}

// Those that the options name, which all have to be there.
static std::map<std::string, TableState> chosen(ps::Client& client, const PsJob& options,
                                                std::string_view verb) {
  std::map<std::string, TableState> all = by_name(client.describe());
  std::string names;
  for (const auto& [name, state] : all) names += concat(names.empty() ? "" : ", ", name);
  SHOAL_CHECK(!all.empty(), InvalidInput, "ps ", verb,
              ": the job's trainers have not made a table yet; try again");
  if (options.table.empty()) return all;
  SHOAL_CHECK(all.contains(options.table), InvalidInput, "ps ", verb, ": there is no table ",
              in_quotes(options.table), "; there are ", names);
  std::erase_if(all, [&](const auto& each) { return each.first != options.table; });
  return all;
}

// "1.2 M"
static std::string in_short(double number) {
  static constexpr const char* kUnits[] = {"", " k", " M", " G", " T"};
  std::size_t unit = 0;
  for (; number >= 999.5 && unit + 1 < std::size(kUnits); ++unit) number /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, number >= 99.5 || unit == 0 ? "%.0f%s" : "%.1f%s", number, kUnits[unit]);
  return text;
}

static void print_line(const std::string& what, const std::string& parts, const TableState& now,
                       const TableState& before, double seconds) {
  const auto rate = [&](std::uint64_t last,
                        std::uint64_t first) {  // of a part that another server has now: anew
    return seconds == 0 ? std::string("-")
                        : in_short(last < first ? 0 : static_cast<double>(last - first) / seconds);
  };
  std::printf("%-24s %7s %10s %10s %12s %10s %10s\n", what.c_str(), parts.c_str(),
              in_short(static_cast<double>(now.rows)).c_str(),
              in_short(static_cast<double>(now.cold_rows)).c_str(), human_bytes(now.bytes).c_str(),
              rate(now.pulled, before.pulled).c_str(), rate(now.pushed, before.pushed).c_str());
}

// A line a server and a line a table.
static void print(const ps::ShardMap& map, const States& now, const States& before, double seconds) {
  std::printf("%-24s %7s %10s %10s %12s %10s %10s\n", "", "parts", "rows", "on disk", "in memory", "pulled/s",
              "pushed/s");
  const auto sum_of = [&](const States& states, int server, int* parts) {
    TableState sum;
    for (std::size_t part = 0; part < std::min(states.size(), map.parts.size()); ++part) {
      if (map.server_of(map.parts[part].primary) != server) continue;
      if (parts != nullptr) ++*parts;
      for (const TableState& state : states[part]) add(sum, state);
    }
    return sum;
  };
  std::vector<int> servers = map.servers;
  std::ranges::sort(servers);
  servers.erase(std::ranges::unique(servers).begin(), servers.end());
  for (const int server : servers) {
    if (server == ps::ShardMap::kNone) continue;
    int parts = 0;
    const TableState sum = sum_of(now, server, &parts);
    print_line(concat("server ", server, map.is_leaving(server) ? ", leaving" : ""), std::to_string(parts),
               sum, sum_of(before, server, nullptr), seconds);
  }
  auto earlier = by_name(before);
  for (const auto& [name, state] : by_name(now)) print_line(name, "", state, earlier[name], seconds);
  if (const int lacking = map.num_lacking(); lacking > 0)
    std::printf("%d of %zu parts have no second copy\n", lacking, map.parts.size());
  std::fflush(stdout);
}

int ps_top(const PsJob& options) {
  const Running running(options.folder);
  ps::Client client = running.client();
  States before;
  std::chrono::steady_clock::time_point then;
  for (std::int64_t look = 0; options.times == 0 || look < options.times; ++look) {
    if (look > 0 && running.interrupted_within(static_cast<long>(1000 * options.every)) != 0) break;
    States now = client.describe();
    const auto time = std::chrono::steady_clock::now();
    print(running.map(), now, before, look == 0 ? 0 : std::chrono::duration<double>(time - then).count());
    before = std::move(now);
    then = time;
  }
  return 0;
}

int ps_save(const PsJob& options) {
  const Running running(options.folder);
  ps::Client client = running.client();
  DiskFileSystem files;
  const fs::path to = fs::absolute(options.to);
  if (const std::error_code error = make_folders(to))
    fail(ErrorKind::InvalidInput, "ps save: cannot make the folder ", to.string(), ": ", error.message());
  std::random_device random;
  const std::uint64_t origin = (std::uint64_t{random()} << 32 | random()) | 1U;
  for (const auto& [name, state] : chosen(client, options, "save")) {
    const auto table = client.create(ps::definition_from_text(state.definition));
    const ps::SaveReport report =
        options.for_serving ? client.export_to(table, to / name, static_cast<float>(options.min_score))
                            : client.save(table, to / name, origin);
    say(concat((to / name).string(), ": ", report.rows, " rows, ", human_bytes(report.bytes)));
  }
  files.sync_folder(to);
  return 0;
}

int ps_shrink(const PsJob& options) {
  const Running running(options.folder);
  ps::Client client = running.client();
  for (const auto& [name, state] : chosen(client, options, "shrink")) {
    const ps::Definition definition = ps::definition_from_text(state.definition);
    if (!definition.scored) {
      SHOAL_CHECK(options.table.empty(), InvalidInput, "ps shrink: table ", in_quotes(name),
                  " has no scores: nothing of it expires");
      continue;
    }
    const auto day = options.day < 0 ? state.day + 1 : static_cast<std::uint32_t>(options.day);
    const ps::Shrunk went = client.shrink(client.create(definition), day);
    say(concat("day ", day, "  ", name, ": ", to_text(went)));
  }
  return 0;
}

}  // namespace shoal::cli
