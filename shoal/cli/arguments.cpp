// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "shoal/base/error.h"
#include "shoal/cli/bench.h"
#include "shoal/cli/bench_ps.h"
#include "shoal/cli/calibrate.h"
#include "shoal/cli/data.h"
#include "shoal/cli/ps_servers.h"
#include "shoal/cli/ps_size.h"
#include "shoal/cli/run.h"
#include "shoal/cli/simulate.h"

namespace shoal::cli {

namespace {

// An option whose default --help shows.
struct Adder {
  CLI::App& command;

  void operator()(const char* name, auto& value, const char* help) const {
    command.add_option(name, value, help)->capture_default_str();
  }
};

}  // namespace

std::string is_one_or_more(const std::string& text) {
  int number = 1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number >= 1 ? "" : concat(text, " ranks; wanted 1 or more");
}

void add_options(CLI::App& command, BenchComm& options) {
  const Adder add = {command};
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

void add_options(CLI::App& command, BenchPs& options) {
  const Adder add = {command};
  add("--op", options.op, "pull, push, or both with a comma between");
  add("--transport", options.transport,
      "memory (in process), tcp (a server of one loop), shm (one that shares memory), or several");
  add("--rows", options.rows, "Of the table, with K, M or G");
  add("--dim", options.dim, "Values of a row; Adagrad keeps as many beside");
  add("--batch", options.batch, "Keys of a request");
  add("--format", options.format, "text or csv");
  add("--repeats", options.repeats, "Of half a million keys each; the median is printed");
  add("--parts", options.parts, "That the keys are in, of a server");
  command.footer(
      "\nrows_per_second_per_core is by the processor time of the core that works on rows: of a server the "
      "server's.\n"
      "p99_us is how long a request takes by the clock. Keys are uniform.");
}

void add_options(CLI::App& command, DataGenerate& options) {
  data::ClickWorldOptions& world = options.world;
  const Adder add = {command};
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

void add_options(CLI::App& command, Run& options) {
  elastic::Launch& launch = options.launch;
  const Adder add = {command};
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
  add("--servers", options.servers,
      "Processes, over all hosts, that have the tables of the program's trainers");
  add("--server-threads", options.serve.threads, "Of each server");
  add("--server-copies", options.serve.copies,
      "Of each row, on two servers: one may end; one server has one");
  add("--server-parts", options.serve.parts,
      "Of the keys: as many threads of servers can share them; 0: those of the first servers");
  command.add_option("--server-memory", options.serve.memory,
                     "Of each table, over all servers, as 8GiB; other rows lie on disk");
  command.add_option("--server-cold-folder", options.serve.cold_folder,
                     "Where those lie, on this host's disk; else cold in --job-folder");
  command.add_option("--job-folder", options.job_folder,
                     "Folder in which shoal ps add and remove find the job's servers");
  command.prefix_command();
  command.footer(
      "\nThe program and its arguments come last: shoal run -n 4 ./train --steps 10. It finds RANK, "
      "WORLD_SIZE,\n"
      "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, as under torchrun.\n"
      "Exit codes: 0 all ranks ended with 0, else that of the rank that failed first (128 + its signal),\n"
      "2 wrong use, 128 + the signal that ended this command.");
}

void add_options(CLI::App& command, PsServe& options) {
  const Adder add = {command};
  add("--threads", options.threads, "Loops, each of a thread");
  add("--copies", options.copies, "Of each row, on two servers where there are two");
  add("--parts", options.parts, "Of the keys; 0: as many as the first servers have threads");
  command.add_option("--memory", options.memory, "Of each table, over all servers; other rows lie on disk");
  command.add_option("--cold-folder", options.cold_folder, "Where those lie");
}

void add_options(CLI::App& command, PsSize& options) {
  const Adder add = {command};
  add("--rows", options.rows, "Of all tables, with K, M, G or T");
  add("--width", options.width, "Values of a row");
  add("--optimizer", options.optimizer, "Of rows, which has state beside them");
  add("--dtype", options.dtype, "Of the values");
  command.add_flag("--scored", options.scored, "Rows have scores, and expire");
  add("--copies", options.copies, "Of each row, on two servers, or 1");
  add("--server-memory", options.server_memory, "Of a server: four fifths of it are for rows");
}

void add_options(CLI::App& command, Calibrate& options) {
  command.add_option("-o,--output", options.out, "File to write: TOML, for shoal simulate --cluster")
      ->required();
  command
      .add_option("-n,--nproc-per-node,--nproc_per_node", options.ranks,
                  "Measure for so many ranks of this host, all at once")
      ->check(is_one_or_more)
      ->capture_default_str();
  command.add_option("--from-trace", options.from_trace,
                     "Learn from a run instead: the simulated.json of one with --profiling.cluster");
  command.footer(
      "\nRun it on an idle machine. Under shoal run it measures for the ranks of that job, on several hosts "
      "too.");
}

void add_options(CLI::App& command, Simulate& options) {
  const Adder add = {command};
  command.add_option("RECIPE", options.recipe,
                     "A TOML file, whose step is played; without one a schedule alone");
  command.add_option("-n,--ranks", options.ranks, "That train the recipe")->check(is_one_or_more);
  command.add_option("--cluster", options.cluster,
                     "A TOML file that describes the machines, as those in clusters/");
  command.add_option("--plan", options.plan, "File that says how layers are cut: parallelism.plan");
  command.allow_extras();
  command.add_option(
      "--schedule", options.schedule,
      "Of a pipeline without a recipe, 1f1b where it is not said; a wrong name gets the list of them");
  command.add_option("--stages", options.stages, "That the model is cut into, on all ranks");
  command.add_option("--stages-per-rank", options.stages_per_rank,
                     "Of interleaved_1f1b and looped_bfs, where it is not 2");
  command.add_option("--microbatches", options.microbatches, "Of a step");
  add("--times", options.times,
      "Milliseconds of forward, input gradient, weight gradient and transfer, of a stage and micro-batch");
  command.add_option("--csv", options.csv, "Read the schedule from a file in PyTorch's letters instead");
  command.add_option("--save", options.save, "Write the schedule as such a file");
  command.add_option("--timeline", options.timeline, "Draw ranks and time as an HTML page");
  command.footer(
      "\nA rank's bubble is its time from first start to last end in which it computes nothing; the rate is "
      "that of\n"
      "the rank that waits longest. Activations are of one stage and micro-batch each, when a rank holds the "
      "most.");
}

}  // namespace shoal::cli
