// SPDX-License-Identifier: Apache-2.0
// The shoal command. Exit codes: 0 done, 1 failed, 2 wrong use (command line or recipe), 130 interrupted by
// Ctrl-C, 143 ended by SIGTERM.
#include <c10/util/Exception.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/cli/arguments.h"
#include "shoal/cli/bench.h"
#include "shoal/cli/bench_ps.h"
#include "shoal/cli/calibrate.h"
#include "shoal/cli/data.h"
#include "shoal/cli/ps_verbs.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/recipe.h"
#include "shoal/cli/run.h"
#include "shoal/cli/simulate.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/compile.h"
#include "shoal/planner/milp.h"

using namespace shoal;

static constexpr int kFailed = 1;
static constexpr int kWrongUse = 2;

struct Verb {
  const char* name;
  const char* summary;
  int (*run)(const cli::Recipe&, const cli::Options&);
  void (*add)(CLI::App&, cli::Options&) = nullptr;  // its own options
  bool has_ranks = false;
};

static void add_plan(CLI::App& command, cli::Options& options) {
  command.add_option("--plan", options.plan, "File that says how layers are cut: parallelism.plan");
}

static void add_train(CLI::App& command, cli::Options& options) {
  command
      .add_option("-n,--nproc-per-node,--nproc_per_node", options.ranks,
                  "Start so many ranks on this host, which train together")
      ->check(cli::is_one_or_more);
  command.add_option("--max-restarts,--max_restarts", options.max_restarts,
                     "How often all of them start again when one has failed");
  command.add_option("--log-dir,--log_dir", options.log_folder, "Folder for the output of each rank");
  add_plan(command, options);
}

static void add_verify(CLI::App& command, cli::Options& options) {
  command.add_option("-n,--ranks", options.ranks, "Ranks, which are threads of this process")
      ->required()
      ->check(cli::is_one_or_more);
  command.add_option("--random", options.random, "Draw so many strategies, instead of the recipe's");
  command.add_option("--seed", options.seed, "Of the first of them");
  add_plan(command, options);
}

static void add_print_after(CLI::App& command, cli::Options& options) {
  std::string moves;
  for (const std::string_view move : compile::moves()) moves += concat(moves.empty() ? "" : ", ", move);
  command.add_option("--print-after", options.print_after,
                     concat("Print what there is after a move of the compilation: ", moves, ", or all"));
}

static void add_planning(CLI::App& command, cli::Options& options) {
  command.add_option("-n,--ranks", options.ranks, "Ranks to plan for")
      ->required()
      ->check(cli::is_one_or_more);
  command.add_option("--save-plan", options.save_plan,
                     "File for the plan, with what was found of it, for --plan");
  command.add_flag("--dry-run", options.dry_run, "Lower what every kind of rank would run");
  add_print_after(command, options);
  command.add_flag(
      "--measure", options.measure,
      "Run a step of the first rank, without peers and on zeros, and hold its memory against the plan's");
  add_plan(command, options);
  command.add_option("--picture", options.picture,
                     "Draw each layer's layouts, and messages, as an HTML page");
  command.add_option("--diff", options.diff, "Compare two plans: files, or found for one that is found")
      ->expected(1, 2)
      ->type_name("A B");
}

static constexpr std::array kVerbs = {
    Verb{"capture", "Print the graph of a recipe's training step: forward, backward and update", cli::capture,
         add_print_after},
    Verb{"generate", "Write text, or tokens, with the newest checkpoint of a recipe or other weights",
         cli::generate},
    Verb{"plan", "Print what each layer is on ranks: layouts, collectives, bytes, what runs split", cli::plan,
         add_planning, true},
    Verb{"train", "Train a recipe's model; results go to job.dump_folder", cli::train, add_train, true},
    Verb{"verify", "Train on one device and on ranks, and compare; exits with 1 where they differ",
         cli::verify, add_verify, true},
};

// What `shoal checkpoint` does with paths.
struct CheckpointVerb {
  const char* name;
  const char* summary;
  const char* paths;
  int (*run)(const std::vector<std::string>&);
};

static constexpr std::array kCheckpointVerbs = {
    CheckpointVerb{"export", "Write a checkpoint's weights as Hugging Face's from_pretrained reads them",
                   "The checkpoint, and the folder to write", cli::checkpoint_export},
    CheckpointVerb{"inspect", "Print what is in checkpoints", "Checkpoints, or folders of them",
                   cli::checkpoint_inspect},
    CheckpointVerb{"verify", "Check every byte of checkpoints; exits with 1 if one is damaged",
                   "Checkpoints, or folders of them", cli::checkpoint_verify},
};

static std::string keys_of(const cli::Recipe& recipe, std::string_view only_section) {
  cli::Recipe copy = recipe;
  std::string text;
  for (const cli::Option& option : cli::options_of(copy)) {
    const bool of_model = option.section == "model" && option.key != "name" && option.key != "flavor";
    if (of_model != (only_section == "model")) continue;
    std::string row = concat("  ", option.section, ".", option.key, " = ", cli::value_of(option));
    row.resize(std::max<std::size_t>(row.size() + 2, 45), ' ');
    text += concat(row, option.help, "\n");
  }
  return text;
}

// Every key there is, with its default.
static std::string keys() {
  cli::Recipe with_lists;
  with_lists.annotate.resize(1);
  with_lists.tables.resize(1);
  std::string text =
      "\nKeys of a recipe; each is also an option, --section.key=value; of the first of the [[tables]] "
      "tables.0.key:\n" +
      keys_of(with_lists, "");
  for (const models::Flavor& row : models::flavors()) {
    if (!row.flavor.empty()) continue;
    cli::Recipe recipe;
    recipe.model.name = row.model;
    recipe.model.config = row.config;
    text += concat("With model.name = \"", row.model, "\":\n", keys_of(recipe, "model"));
  }
  return text +
         "\nExit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted by Ctrl-C, 143 ended by SIGTERM.\n";
}

static int failed(int code, const std::string& message) {
  std::fprintf(stderr, "shoal: %s\n", message.c_str());
  return code;
}

// LibTorch appends where in its own sources an error arose.
static std::string first_paragraph(std::string message) {
  for (const char* end : {"\nException raised from", "\n\n"})
    if (const std::size_t at = message.find(end); at != std::string::npos) message.resize(at);
  return message;
}

// The exit code of what a verb does, or of how it fails.
static int guarded(const std::function<int()>& act) {
  try {
    return act();
  } catch (const Error& error) {
    return failed(kFailed, error.kind() == ErrorKind::Internal
                               ? concat("a fault of Shoal's own: ", error.what())
                               : error.what());
  } catch (const c10::Error& error) {
    return failed(kFailed, first_paragraph(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return failed(kFailed, "out of memory; a smaller training.local_batch_size needs less");
  } catch (const std::exception& error) {
    return failed(kFailed, first_paragraph(error.what()));
  }
}

static int run(const Verb& verb, cli::Options options) {
  cli::Recipe recipe;
  try {
    const std::vector<std::string> overrides(options.words.begin() + 1, options.words.end());
    recipe = cli::read_recipe(options.words.front(), overrides);
    if (verb.has_ranks) {
      const int here = elastic::place_of(elastic::environment_of(environ)).size;
      for (const cli::Recipe& each : cli::recipes_of(recipe, options))
        cli::check_ranks(each, options.ranks > 0 ? options.ranks : here);
    }
  } catch (const Error& error) {
    return failed(kWrongUse, error.what());
  }
  return guarded([&] { return verb.run(recipe, options); });
}

// Of a verb without a recipe: options that cannot be are wrong use.
static int run(const std::function<void()>& check, const std::function<int()>& act) {
  return guarded([&] {
    try {
      check();
    } catch (const Error& error) {
      return failed(kWrongUse, error.what());
    }
    return act();
  });
}

template <class Options>
static int run(Options& options, int (*act)(const Options&)) {
  return run([&] { cli::check(options); }, [&] { return act(options); });
}

static int run(cli::Simulate& options) {
  if (options.recipe.empty()) {
    if (!options.overrides.empty())
      return failed(kWrongUse,
                    concat("simulate: nothing reads ", options.overrides[0], ". --help lists what there is"));
    return run(options, cli::simulate);
  }
  cli::Recipe recipe;
  try {
    if (!options.plan.empty()) options.overrides.push_back("--parallelism.plan=" + options.plan);
    recipe = cli::read_recipe(options.recipe, options.overrides);
    cli::check_step(options);
    cli::check_ranks(recipe, options.ranks);
  } catch (const Error& error) {
    return failed(kWrongUse, error.what());
  }
  return guarded([&] { return cli::simulate_step(recipe, options); });
}

// A first word that is no verb; nullopt when it is one, or an option.
static std::optional<std::string> no_verb(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return std::nullopt;
  std::vector<std::string_view> names = {"bench", "calibrate", "checkpoint", "data", "ps", "run", "simulate"};
  if (std::ranges::find(names, argv[1]) != names.end()) return std::nullopt;
  for (const Verb& verb : kVerbs) {
    if (argv[1] == std::string_view(verb.name)) return std::nullopt;
    names.emplace_back(verb.name);
  }
  return concat("there is no verb ", argv[1], "; did you mean ", nearest(argv[1], names),
                "? shoal --help names all");
}

// `shoal run -n 4 -- program`: the "--" before the program says no more than the program's place does.
static std::vector<char*> without_separator(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  if (argc < 2 || argv[1] != std::string_view("run")) return arguments;
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    const std::string_view word = arguments[i];
    if (word == "--") {
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    if (!word.starts_with('-')) break;  // the program
    const bool has_value = word.find('=') != std::string_view::npos || word == "--pin-cores" ||
                           (!word.starts_with("--") && word.size() > 2);
    if (!has_value) ++i;
  }
  return arguments;
}

int main(int argc, char** argv) {
  if (const auto message = no_verb(argc, argv)) return failed(kWrongUse, *message);
  if (const char* highs = std::getenv("SHOAL_HIGHS_LIBRARY"); highs != nullptr)
    planner::set_highs_library(highs);
  try {
    if (const char* readers = std::getenv("SHOAL_FILES"); readers != nullptr) set_readers(readers);
  } catch (const Error& error) {
    return failed(kWrongUse, error.what());
  }
  CLI::App app("Shoal trains an unmodified LibTorch model through its captured graph.", "shoal");
  app.require_subcommand(1);
  app.set_version_flag("--version", "shoal " SHOAL_VERSION);
  std::string path;
  cli::Options options;
  for (const Verb& verb : kVerbs) {
    CLI::App* command = app.add_subcommand(verb.name, verb.summary);
    if (verb.add != nullptr) verb.add(*command, options);
    command->add_option("RECIPE", path, "A TOML file, as those in recipes/")->required();
    command->allow_extras();
    command->footer(keys());
  }
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);
  cli::BenchComm bench_options;
  add_options(*bench->add_subcommand("comm", "Time the operations between processes of this host"),
              bench_options);
  cli::BenchPs bench_ps_options;
  CLI::App* bench_ps = bench->add_subcommand("ps", "Time the tables of a parameter server");
  add_options(*bench_ps, bench_ps_options);
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "Inspect, verify or export checkpoints");
  checkpoint->require_subcommand(1);
  std::vector<std::string> paths;
  for (const CheckpointVerb& verb : kCheckpointVerbs)
    checkpoint->add_subcommand(verb.name, verb.summary)->add_option("PATH", paths, verb.paths)->required();
  CLI::App* data = app.add_subcommand("data", "Make data to train on");
  data->require_subcommand(1);
  cli::DataGenerate data_options;
  add_options(
      *data->add_subcommand("generate", "Write Criteo-shaped samples whose best possible AUC is known"),
      data_options);
  cli::PsVerbs ps(app);
  cli::Run run_options;
  CLI::App* launch = app.add_subcommand("run", "Start a program once a rank, and end all when one fails");
  add_options(*launch, run_options);
  cli::Calibrate calibrate_options;
  CLI::App* calibrate = app.add_subcommand("calibrate", "Measure this machine for shoal simulate");
  add_options(*calibrate, calibrate_options);
  cli::Simulate simulate_options;
  CLI::App* simulate = app.add_subcommand(
      "simulate", "Play a recipe's step on a cluster, or a pipeline schedule: time, bubble, memory");
  add_options(*simulate, simulate_options);
  try {
    auto arguments = without_separator(argc, argv);
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUse;
  }
  for (const Verb& verb : kVerbs)
    if (const CLI::App* command = app.get_subcommand(verb.name); command->parsed()) {
      options.words = command->remaining();
      options.words.insert(options.words.begin(), path);
      if (!options.plan.empty()) options.words.push_back("--parallelism.plan=" + options.plan);
      return run(verb, options);
    }
  if (bench_ps->parsed()) return run(bench_ps_options, cli::bench_ps);
  if (bench->parsed()) return run(bench_options, cli::bench_comm);
  if (data->parsed()) return run(data_options, cli::data_generate);
  if (const cli::PsVerbs::Verb* verb = ps.said()) return run(verb->check, verb->run);
  if (calibrate->parsed()) return run(calibrate_options, cli::calibrate);
  if (simulate->parsed()) {
    simulate_options.overrides = simulate->remaining();
    return run(simulate_options);
  }
  if (launch->parsed()) {
    run_options.launch.command = launch->remaining();
    return run(run_options, cli::run);
  }
  for (const CheckpointVerb& verb : kCheckpointVerbs)
    if (checkpoint->get_subcommand(verb.name)->parsed()) return guarded([&] { return verb.run(paths); });
  return kWrongUse;
}
