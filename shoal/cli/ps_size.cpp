// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/ps_size.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/counts.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/ps/table.h"

namespace shoal::cli {

static constexpr const char* kMostRows = "1000T";
static constexpr double kIndexBytes = 24;  // of a key, at most (ps/index.h)
static constexpr double kShareOfRows =
    0.8;  // of a server's memory; the rest is the system's, and of what moves

static DType dtype_of(const PsSize& options) {
  const auto dtype = parse_dtype(options.dtype);
  SHOAL_CHECK(dtype && (*dtype == DType::Float32 || *dtype == DType::Float64 || *dtype == DType::BFloat16),
              InvalidInput, "ps size: --dtype is ", in_quotes(options.dtype),
              "; it is float32, float64 or bfloat16");
  return *dtype;
}

static ps::Definition definition_of(const PsSize& options) {
  const auto rule = ps::parse_rule(options.optimizer);
  SHOAL_CHECK(rule, InvalidInput, "ps size: --optimizer is ", in_quotes(options.optimizer),
              "; it is sgd, momentum, adagrad, row_adagrad, adam, row_adam, rms_prop or ftrl");
  return {.name = "rows",
          .dtype = dtype_of(options),
          .parts = {{.width = options.width, .optimizer = {.rule = *rule}}},
          .scored = options.scored};
}

static double memory_of_server(const PsSize& options) {
  const auto memory = parse_bytes(options.server_memory);
  SHOAL_CHECK(memory, InvalidInput, "ps size: --server-memory is ", in_quotes(options.server_memory),
              "; it is a number and a unit, as 64GiB");
  return static_cast<double>(*memory);
}

void check(PsSize& options) {
  count_in("--rows", options.rows, kMostRows);
  memory_of_server(options);
  SHOAL_CHECK(options.copies == 1 || options.copies == 2, InvalidInput, "ps size: --copies is ",
              options.copies, ", wanted 1 or 2");
  ps::check(definition_of(options));
}

int ps_size(const PsSize& options) {
  const auto rows = static_cast<double>(count_in("--rows", options.rows, kMostRows));
  const auto a_row = static_cast<double>(ps::Table(definition_of(options)).bytes_a_row());
  const double one = rows * (a_row + kIndexBytes), all = one * options.copies;
  const auto servers = static_cast<std::int64_t>(
      std::max<double>(options.copies, std::ceil(all / (kShareOfRows * memory_of_server(options)))));
  const auto bytes = [](double number) { return human_bytes(static_cast<std::int64_t>(number)); };
  say(concat("a row: ", a_row, " bytes with its state, and at most ", kIndexBytes, " of index\n",
             options.rows, " rows: ", bytes(one),
             options.copies == 1 ? "" : concat(", on two servers each: ", bytes(all)), "\nservers of ",
             options.server_memory, ": ", servers, ", ", bytes(all / static_cast<double>(servers)),
             " on each; a checkpoint: about ", bytes(rows * (a_row + sizeof(std::uint64_t)))));
  return 0;
}

}  // namespace shoal::cli
