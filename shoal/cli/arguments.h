// SPDX-License-Identifier: Apache-2.0
// What verbs without a recipe take on the command line, and what their --help says.
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 calls itself so
class App;
}

namespace shoal::cli {

struct BenchComm;
struct BenchPs;
struct Calibrate;
struct DataGenerate;
struct PsServe;
struct PsSize;
struct Run;
struct Simulate;

// Of a number of ranks: what is wrong; empty if nothing is.
std::string is_one_or_more(const std::string& text);

void add_options(CLI::App& command, BenchComm& options);
void add_options(CLI::App& command, BenchPs& options);
void add_options(CLI::App& command, Calibrate& options);
void add_options(CLI::App& command, DataGenerate& options);
void add_options(CLI::App& command, PsServe& options);
void add_options(CLI::App& command, PsSize& options);
void add_options(CLI::App& command, Run& options);
void add_options(CLI::App& command, Simulate& options);

}  // namespace shoal::cli
