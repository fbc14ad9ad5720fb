// SPDX-License-Identifier: Apache-2.0
// `shoal ps` on the command line: its verbs, and what they take.
#pragma once

#include <functional>
#include <vector>

#include "shoal/cli/ps_jobs.h"
#include "shoal/cli/ps_rows.h"
#include "shoal/cli/ps_servers.h"
#include "shoal/cli/ps_size.h"
#include "shoal/cli/score.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 calls itself so
class App;
}

namespace shoal::cli {

// Options are written where it lies: it outlives the parse, and stays where it is.
class PsVerbs {
 public:
  explicit PsVerbs(CLI::App& app);
  PsVerbs(const PsVerbs&) = delete;
  PsVerbs& operator=(const PsVerbs&) = delete;

  struct Verb {
    CLI::App* command;
    std::function<void()> check;  // throws InvalidInput
    std::function<int()> run;
  };
  const Verb* said() const;  // null: none of them

 private:
  template <class Options>
  CLI::App* add(const char* name, const char* summary, Options& options, int (*act)(const Options&));

  CLI::App& ps_;
  PsServe serve_;
  PsRows rows_;
  PsScore score_;
  PsJob job_;
  PsSize size_;
  std::vector<Verb> verbs_;
};

}  // namespace shoal::cli
