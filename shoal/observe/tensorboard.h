// SPDX-License-Identifier: Apache-2.0
// Scalars in the files that TensorBoard reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/observe/file.h"

namespace shoal::observe {

// One record of an event file: length, checksum, bytes, checksum (TFRecord).
std::string record_of(std::string_view bytes);
// An Event of TensorFlow's event.proto with scalars by tag, or, without any, the one that begins a file.
std::string scalar_event(double seconds, std::int64_t step,
                         const std::vector<std::pair<std::string, double>>& scalars);

// Appends to a new file events.out.tfevents.SECONDS.shoal in a folder; what is written is there at once.
class EventFile {
 public:
  EventFile(const std::filesystem::path& folder, double seconds);  // since 1970; throws Infeasible
  void write(double seconds, std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

 private:
  LineFile file_;
};

}  // namespace shoal::observe
