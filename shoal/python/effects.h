// SPDX-License-Identifier: Apache-2.0
// What a model changes around itself while it runs. A run that is recorded is taken back: afterwards every
// object is as it was. What it had changed happens when the step has been made, with the step's values.
//
//   self.h = h.detach()        an output of the step; put into the attribute after it
//   self.aux.append(loss)      likewise
//   self.ready = True          put there after it; the next step is another graph
//   self.calls += 1            once, then an error: each step would be another graph
//   random.random()            an error: it would be drawn once for all steps
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/python/tree.h"
#include "shoal/python/watch.h"

namespace shoal::python {

// One thing that a run has put somewhere.
struct Effect {
  Place place;                // without contents
  py::object key;             // of a dictionary or of slots; null: all of the place
  std::optional<Tree> value;  // none: it was taken away. A leaf of Kind::Tensor has the number of an output
};

struct Effects {
  std::vector<Effect> list;
  std::vector<at::Tensor> outputs;                          // recorded
  std::vector<std::pair<std::string, std::string>> values;  // path and text of what is no tensor
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;    // buffers that were replaced, and by what
  std::string structure = {};                               // a path where a parameter or module was put
  std::string array = {};  // of an array, of NumPy's say, that was written into

  // With the values of a step: outputs by number.
  void apply(const std::vector<at::Tensor>& outputs) const;
};

// The states of Python's generators before a run: random, NumPy's, and those that the watch has found.
class Generators {
 public:
  explicit Generators(const Watch& watch);
  // Puts them back; throws InvalidInput where the run has drawn from one.
  void check(const Watch& watch) const;
  void restore() const;

 private:
  struct Generator {
    std::string name;
    py::object object, state;
    std::string bytes;
  };
  std::vector<Generator> list_;
};

// Finds what has changed since the watch looked last, and puts everything back.
Effects take_back(const Watch& watch);

// Values that a model has left in a place while it ran. A place may change once with batches of these sizes
// (a cache, a flag), and go back and forth between values that were there before; a counter is an error.
class Changes {
 public:
  void check(const Effects& effects, const std::string& sizes);

 private:
  std::map<std::string, std::set<std::string>> seen_;
};

}  // namespace shoal::python
