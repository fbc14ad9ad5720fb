// SPDX-License-Identifier: Apache-2.0
// What a program says of its own parts, with the scopes `replicate` and `split` (capture/scopes.h).
#pragma once

#include <string>
#include <vector>

namespace shoal::ir {

struct Scopes {
  struct Scope {        // one, as it was entered
    int devices = 0;    // 0: not said
    std::string where;  // its first operator, for messages: "in or after module h.0 at net.cpp:12"
    friend bool operator==(const Scope&, const Scope&) = default;
  };
  struct Split : Scope {                  // one of `split`
    std::vector<std::string> parameters;  // that are read or were made inside, by name
    friend bool operator==(const Split&, const Split&) = default;
  };
  // Each is a stage of a pipeline: forward's nodes have their number in Node::stage, and never go back. What stands
  // before the first belongs to it, and what is in none to the one before it.
  std::vector<Scope> stages;
  std::vector<Split> splits;
  friend bool operator==(const Scopes&, const Scopes&) = default;
};

}  // namespace shoal::ir
