// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/ps_servers.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/elastic/place.h"
#include "shoal/ps/map_keeper.h"
#include "shoal/ps/server.h"

namespace shoal::cli {

PsServe ps_serve_of(const Recipe& recipe) {
  return {
      .threads = static_cast<int>(recipe.ps.threads),
      .copies = static_cast<std::uint32_t>(recipe.ps.copies),
      .parts = static_cast<std::uint32_t>(std::max(recipe.ps.parts, recipe.ps.servers * recipe.ps.threads)),
      .memory = recipe.ps.memory,
      .cold_folder = cold_folder_of(recipe)};
}

void add_servers(elastic::Launch& launch, int servers, const PsServe& options,
                 const std::filesystem::path& folder) {
  if (servers == 0) return;
  SHOAL_CHECK(options.parts == 0 ||
                  static_cast<std::int64_t>(options.parts) >= std::int64_t{servers} * options.threads,
              InvalidInput, "servers: ", servers, " of ", options.threads, " threads share ", options.parts,
              " parts of the keys, so that some had none; wanted as many parts or more, or 0");
  launch.servers = servers;
  launch.server_command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                           "ps",
                           "serve",
                           concat("--threads=", options.threads),
                           concat("--copies=", options.copies),
                           concat("--parts=", options.parts)};
  if (!options.memory.empty()) {
    launch.server_command.push_back(concat("--memory=", options.memory));
    launch.server_command.push_back(
        concat("--cold-folder=", std::filesystem::absolute(options.cold_folder).string()));
  }
  launch.servers_have_copies = options.copies > 1;
  launch.job_folder = folder;
}

std::filesystem::path cold_folder_of(const Recipe& recipe) {
  if (recipe.ps.memory.empty()) return {};
  return recipe.ps.cold_folder.empty() ? std::filesystem::path(recipe.job.dump_folder) / "cold"
                                       : std::filesystem::path(recipe.ps.cold_folder);
}

void check(PsServe& options) {
  SHOAL_CHECK(options.threads >= 1, InvalidInput, "servers: threads is ", options.threads,
              ", wanted at least 1");
  SHOAL_CHECK(options.copies == 1 || options.copies == 2, InvalidInput, "servers: copies is ", options.copies,
              ", wanted 1 or 2");
  SHOAL_CHECK(options.memory.empty() || parse_bytes(options.memory).value_or(0) > 0, InvalidInput,
              "servers: memory is ", in_quotes(options.memory),
              "; it is a number above 0 with a unit, B, KiB, MiB, GiB or TiB: 8GiB");
  SHOAL_CHECK(options.memory.empty() == options.cold_folder.empty(), InvalidInput, "servers: memory is ",
              in_quotes(options.memory), ", and the folder for rows beyond it ",
              in_quotes(options.cold_folder.string()),
              ". Remedy: --server-cold-folder or --job-folder beside --server-memory, or none of them");
}

ps::ColdOptions cold_options(const std::string& memory, const std::filesystem::path& folder) {
  if (memory.empty()) return {};
  return {.memory_bytes = parse_bytes(memory).value(), .folder = folder};
}

int ps_serve(const PsServe& options) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before there are threads
  const elastic::Environment environment = elastic::environment_of(environ);
  const elastic::Member member = elastic::member_of(environment);
  const auto server = static_cast<int>(elastic::number_in(environment, "SHOAL_SERVER"));
  const auto loops = static_cast<std::uint32_t>(options.threads);
  const ps::MapKeeper maps(*member.store);
  const ps::Server serves(
      member.key, {.address = member.address,
                   .loops = loops,
                   .all_loops = loops,
                   .epoch = static_cast<std::uint32_t>(member.epoch),
                   .maps = maps,
                   .cold = cold_options(options.memory, options.cold_folder / concat("server-", server)),
                   .all_copied = [] { say("each row is on two servers again"); }});
  const auto endpoints = serves.endpoints();
  const auto num_first = static_cast<int>(elastic::number_in(environment, "SHOAL_SERVERS"));
  maps.enroll(server, endpoints);
  bool has_map = false;
  const auto has_left = [&] {
    has_map = has_map || maps.begin(num_first, options.copies, options.parts).number > 0;
    return !maps.join(server, endpoints);  // where the others go on without this one, it comes again
  };
  const timespec between_looks = {.tv_sec = 0, .tv_nsec = 50'000'000};
  for (;;) try {
      if (has_left()) return 0;
      if (const int signal = sigtimedwait(&ends, nullptr, &between_looks); signal > 0) return 128 + signal;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;  // the job's store is slow, or the job ends
    }
}

}  // namespace shoal::cli
