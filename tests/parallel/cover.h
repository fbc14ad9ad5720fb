// SPDX-License-Identifier: Apache-2.0
// Cells of the matrix in which all pairs of settings meet (pairwise testing), as all cells are too many for a
// test that runs on each change.
#pragma once

#include <cstddef>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/oracle/cases.h"
#include "tests/parallel/matrix.h"

namespace shoal::matrix {

struct Cell {
  const cases::ModelCase* model;
  Strategy strategy;
  std::vector<std::string> settings;  // what meets: "gpt2", "ZeRO-1", " on 4", …
};

// "gpt2, ZeRO-1" for each two settings of a cell, in their order.
std::vector<std::string> pairs_of(const Cell& cell);

// A file with a line for each cell of a long run that was right: who begins again goes on after them.
class Finished {
 public:
  explicit Finished(const std::string& path);
  bool has(const std::string& cell) const { return cells_.contains(cell); }
  void add(const std::string& cell, double error);
  // "seen: 12 cells, largest error 1.2e-12, 3 of them by a run that was stopped", for tools/prove.py.
  void print() const;

 private:
  std::map<std::string, double> cells_;  // and the error of each
  std::size_t before_ = 0;
  std::ofstream file_;
};

// Always the cell that brings most pairs that are new; of these the one of fewest ranks. Sanitizers take each
// step ten times as long, and look at code rather than at numbers: under them each setting is there once.
std::vector<Cell> cover(const std::vector<Cell>& all);

}  // namespace shoal::matrix
