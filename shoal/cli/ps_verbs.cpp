// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/ps_verbs.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "shoal/cli/arguments.h"

namespace shoal::cli {

template <class Options>
CLI::App* PsVerbs::add(const char* name, const char* summary, Options& options, int (*act)(const Options&)) {
  CLI::App* const command = ps_.add_subcommand(name, summary);
  verbs_.push_back({command, [&options] { check(options); }, [&options, act] { return act(options); }});
  return command;
}

PsVerbs::PsVerbs(CLI::App& app)
    : ps_(*app.add_subcommand("ps", "Serve tables of rows, and look after them")) {
  ps_.require_subcommand(1);
  add_options(*add("serve", "Be a server of the job that this process was started in", serve_, ps_serve),
              serve_);
  add_options(*add("size", "Say what memory so many rows take, and how many servers have it", size_, ps_size),
              size_);

  CLI::App* const inspect = add("inspect", "Print what a saved table is, and how much", rows_, ps_inspect);
  CLI::App* const dump = add("dump", "Print a saved table's rows by key, as CSV", rows_, ps_dump);
  CLI::App* const serving =
      add("export", "Write what serving needs: of a run, or of a saved table", rows_, ps_export);
  for (CLI::App* const command : {inspect, dump})
    command->add_option("PATH", rows_.path, "Files of a saved table, without their numbers")->required();
  serving
      ->add_option("PATH", rows_.path,
                   "A run's job.dump_folder, or files of a saved table, without their numbers")
      ->required();
  serving->add_option("TO", rows_.to, "The folder that is written, or files of the table's values alone")
      ->required();
  serving->add_option("--min-score", rows_.min_score, "Of rows that are served, in a scored table");
  serving->add_option("--batch", rows_.batch, "Of a run: samples that are scored at once")
      ->capture_default_str();
  CLI::App* const score =
      add("score", "Print a probability for each sample, by what was exported", score_, ps_score);
  score->add_option("FOLDER", score_.folder, "What shoal ps export has written")->required();
  score->add_option("SAMPLES", score_.samples, "Files of Criteo's form, gzip or not")->required();

  CLI::App* const more =
      add("add", "Start more servers of a job that runs, and share its rows with them", job_, ps_add);
  CLI::App* const fewer =
      add("remove", "Have others take over what a server of a job has, and end it", job_, ps_remove);
  CLI::App* const top =
      add("top", "Print what the servers of a job have, and what they are asked", job_, ps_top);
  CLI::App* const save = add("save", "Save tables of a job that runs", job_, ps_save);
  CLI::App* const shrink =
      add("shrink", "End a day of a job's tables: scores decay, and rows expire", job_, ps_shrink);
  for (CLI::App* const command : {more, fewer, top, save, shrink})
    command->add_option("FOLDER", job_.folder, "The job's job.dump_folder, or --job-folder")->required();
  more->add_option("--servers", job_.servers, "How many");
  fewer->add_option("--server", job_.server, "Its number")->required();
  top->add_option("--every", job_.every, "Seconds between two looks")->capture_default_str();
  top->add_option("--times", job_.times, "Looks; 0: until it is interrupted")->capture_default_str();
  save->add_option("TO", job_.to, "A folder that all servers see: a table is in files TO/TABLE.0, …")
      ->required();
  save->add_flag("--for-serving", job_.for_serving, "Values alone");
  save->add_option("--min-score", job_.min_score, "Of rows that are served, in a scored table");
  shrink->add_option("--day", job_.day, "Number of the day that begins; else the next one");
  for (CLI::App* const command : {save, shrink})
    command->add_option("--table", job_.table, "Its name; else all");
}

const PsVerbs::Verb* PsVerbs::said() const {
  const auto verb = std::ranges::find_if(verbs_, [](const Verb& each) { return each.command->parsed(); });
  return verb == verbs_.end() ? nullptr : &*verb;
}

}  // namespace shoal::cli
