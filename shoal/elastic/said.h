// SPDX-License-Identifier: Apache-2.0
// What a process of the job has said in its store, read back.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::elastic {

// read(json) gives what is wanted of the text under `key`, by at() and get(). Throws Corrupt, naming the key,
// where the text is another.
template <class Read>
auto read_said(std::string_view key, const std::string& text, Read read) {
  try {
    return read(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::Corrupt, "elastic: what the job's store has under ", in_quotes(key),
         " cannot be read; does another version of Shoal take part? ", error.what());
  }
}

}  // namespace shoal::elastic
