// SPDX-License-Identifier: Apache-2.0
// The parameter servers of a job: processes that the launcher starts beside the ranks, each with loops of its own
// (ps/server.h). The ranks find them by the map in the job's store (World::tables).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "shoal/cli/recipe.h"
#include "shoal/elastic/launcher.h"
#include "shoal/ps/cold_store.h"

namespace shoal::cli {

struct PsServe {             // the same for all servers of a job
  int threads = 1;           // loops of each, a thread each
  std::uint32_t copies = 2;  // of each row, on so many servers where there are as many
  std::uint32_t parts = 0;   // of the keys; 0: as many as the first servers have threads
  // Of each table, over all servers, and each copy as much again: the other rows lie on disk, each server's in a folder
  // in this one. Empty: any.
  std::string memory = {};
  std::filesystem::path cold_folder = {};
};
void check(PsServe& options);
PsServe ps_serve_of(const Recipe& recipe);
// Where the recipe's tables have rows beyond ps.memory; empty where all are in memory.
std::filesystem::path cold_folder_of(const Recipe& recipe);
// `memory` as PsServe has it, of the process that the folder is for.
ps::ColdOptions cold_options(const std::string& memory, const std::filesystem::path& folder);
// So many of them beside the ranks. Who asks for more finds the job in the folder; empty: nobody can.
void add_servers(elastic::Launch& launch, int servers, const PsServe& options,
                 const std::filesystem::path& folder);

// Serves until it is ended by a signal, or has left the job: the process of one server of the job that the environment
// is of.
int ps_serve(const PsServe& options);

}  // namespace shoal::cli
