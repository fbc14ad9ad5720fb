// SPDX-License-Identifier: Apache-2.0
// The shoal command. Exit codes: 0 done, 1 failed, 2 wrong use (command line or recipe), 130 interrupted by
// Ctrl-C, 143 ended by SIGTERM.
#include <c10/util/Exception.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/bench.h"
#include "shoal/cli/bench_ps.h"
#include "shoal/cli/data.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/recipe.h"
#include "shoal/cli/run.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/compile.h"

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
  command.add_option("-n,--nproc-per-node,--nproc_per_node", options.ranks,
                     "Start so many ranks on this host, which train together");
  command.add_option("--max-restarts,--max_restarts", options.max_restarts,
                     "How often all of them start again when one has failed");
  command.add_option("--log-dir,--log_dir", options.log_folder, "Folder for the output of each rank");
  add_plan(command, options);
}

static void add_verify(CLI::App& command, cli::Options& options) {
  command.add_option("-n,--ranks", options.ranks, "Ranks, which are threads of this process")->required();
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
  command.add_option("-n,--ranks", options.ranks, "Ranks to plan for")->required();
  command.add_flag("--dry-run", options.dry_run, "Lower what every kind of rank would run");
  add_print_after(command, options);
  command.add_flag(
      "--measure", options.measure,
      "Run a step of the first rank, without peers and on zeros, and hold its memory against the plan's");
  add_plan(command, options);
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
  std::string text = "\nKeys of a recipe; each is also an option, --section.key=value:\n" + keys_of({}, "");
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
      cli::check_ranks(recipe, options.ranks > 0 ? options.ranks : here);
    }
  } catch (const Error& error) {
    return failed(kWrongUse, error.what());
  }
  return guarded([&] { return verb.run(recipe, options); });
}

static void add_options(CLI::App& command, cli::BenchComm& options) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str();
  };
  add("--op", options.op, "Operations with commas between, or all");
  add("--backend", options.backend, "What is measured: shm or gloo");
  add("--compare", options.compare, "Another one, which takes turns with it");
  add("-n,--ranks", options.ranks, "Processes, which the command starts");
  add("--sizes", options.sizes, "Bytes of the larger of input and output, with K, M or G");
  add("--dtype", options.dtype, "Of the elements");
  add("--buffers", options.buffers, "allocated (by the communicator) or foreign");
  add("--format", options.format, "text or csv");
  add("--repeats", options.repeats, "Samples of each row, of which the median is printed");
  command.add_option("--rank", options.rank)->group("");  // of the processes that it starts
  command.add_option("--store", options.store)->group("");
  command.footer(
      "\nalgorithm_gbps is bytes / time; bus_gbps is that times what nccl-tests gives the operation. "
      "bound_us is how\n"
      "long all ranks at once take here to memcpy as much as the operation has to read and write, share is\n"
      "bound_us / median_us. times: how often it is done while the other backend is done once.");
}

static int run(const cli::BenchComm& options) {
  try {
    cli::check(options);
  } catch (const Error& error) {
    return failed(kWrongUse, error.what());
  }
  return guarded([&] { return cli::bench_comm(options); });
}

static void add_options(CLI::App& command, cli::BenchPs& options) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str();
  };
  add("--op", options.op, "pull, push, or both with a comma between");
  add("--transport", options.transport, "memory (in process), tcp (a server of one loop), or both");
  add("--rows", options.rows, "Of the table, with K, M or G");
  add("--dim", options.dim, "Values of a row; Adagrad keeps as many beside");
  add("--batch", options.batch, "Keys of a request");
  add("--format", options.format, "text or csv");
  add("--repeats", options.repeats, "Of half a million keys each; the median is printed");
  command.footer(
      "\nrows_per_second_per_core is by the processor time of the core that works on rows: over tcp the "
      "server's.\n"
      "p99_us is how long a request takes by the clock. Keys are uniform.");
}

static int run(const cli::BenchPs& options) {
  try {
    cli::check(options);
  } catch (const Error& error) {
    return failed(kWrongUse, error.what());
  }
  return guarded([&] { return cli::bench_ps(options); });
}

static void add_options(CLI::App& command, cli::DataGenerate& options) {
  data::ClickWorldOptions& world = options.world;
  const auto add = [&](const char* name, auto& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str();
  };
  command.add_option("FOLDER", options.folder, "Where day_0_part_0.tsv and so on are written")->required();
  add("--samples", options.samples, "Lines a day");
  add("--days", options.days, "Days");
  add("--files", options.files, "Files a day");
  command.add_option("--threads", options.threads, "That write files; one a core unless said otherwise");
  add("--seed", world.seed, "Of everything that is drawn");
  add("--smallest-field", world.smallest_field, "Ids of the first of 26 fields");
  add("--largest-field", world.largest_field, "Ids of the last one; those between grow by a constant factor");
  add("--zipf", world.zipf, "Exponent of how often ids are drawn");
  add("--deviation", world.deviation, "Of the hidden weight of an id");
  add("--factor-deviation", world.factor_deviation, "Of each of an id's four hidden factors");
  add("--click-share", world.click_share, "Of samples of day 0, about");
  add("--gaps", world.gaps, "Share of ids and integers that are missing");
  add("--drift", world.drift, "Radians by which hidden weights turn a day");
  add("--new-ids", world.new_ids, "Share of ids that are replaced a day");
  command.footer(
      "\nClicks are drawn from a hidden factorisation machine; the oracle knows it, so that no model has a "
      "larger\n"
      "AUC but by chance. The 13 integers say nothing.");
}

static int run(const cli::DataGenerate& options) {
  try {
    cli::check(options);
  } catch (const Error& error) {
    return failed(kWrongUse, error.what());
  }
  return guarded([&] { return cli::data_generate(options); });
}

static void add_options(CLI::App& command, cli::Run& options) {
  elastic::Launch& launch = options.launch;
  const auto add = [&](const char* name, auto& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str();
  };
  add("-n,--nproc-per-node,--nproc_per_node", launch.ranks, "Ranks on this host");
  add("--nnodes", launch.num_hosts, "Hosts, each of which runs this command");
  add("--node-rank,--node_rank", launch.host, "Which of them this is, from 0");
  add("--master-addr,--master_addr", launch.master_address, "An address of host 0 that all hosts reach");
  add("--master-port,--master_port", launch.master_port, "A free port there; with one host any is taken");
  add("--max-restarts,--max_restarts", launch.max_restarts,
      "How often all ranks start again when one has failed");
  command.add_option("--log-dir,--log_dir", options.log_folder,
                     "Folder for the output of each rank, and its last calls when one has failed");
  command.add_option("--key-file", options.key_file, "With several hosts: a file with the job's key");
  command.add_option("--interface", launch.interface, "Network interface between hosts; else found");
  add("--limit", options.limit_seconds, "Seconds that a rank waits for others before that is an error");
  command.add_flag("--pin-cores", launch.pin_cores, "Keep each rank on its share of the cores");
  command.prefix_command();
  command.footer(
      "\nThe program and its arguments come last: shoal run -n 4 ./train --steps 10. It finds RANK, "
      "WORLD_SIZE,\n"
      "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as under torchrun.\n"
      "Exit codes: 0 all ranks ended with 0, else that of the rank that failed first (128 + its signal),\n"
      "2 wrong use, 128 + the signal that ended this command.");
}

static int run(cli::Run& options) {
  try {
    cli::check(options);
  } catch (const Error& error) {
    return failed(kWrongUse, error.what());
  }
  return guarded([&] { return cli::run(options); });
}

// A first word that is no verb; nullopt when it is one, or an option.
static std::optional<std::string> no_verb(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return std::nullopt;
  std::vector<std::string_view> names = {"bench", "checkpoint", "data", "run"};
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
  cli::Run run_options;
  CLI::App* launch = app.add_subcommand("run", "Start a program once a rank, and end all when one fails");
  add_options(*launch, run_options);
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
  if (bench_ps->parsed()) return run(bench_ps_options);
  if (bench->parsed()) return run(bench_options);
  if (data->parsed()) return run(data_options);
  if (launch->parsed()) {
    run_options.launch.command = launch->remaining();
    return run(run_options);
  }
  for (const CheckpointVerb& verb : kCheckpointVerbs)
    if (checkpoint->get_subcommand(verb.name)->parsed()) return guarded([&] { return verb.run(paths); });
  return kWrongUse;
}
