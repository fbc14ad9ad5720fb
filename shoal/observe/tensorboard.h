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
// `seconds`: since 1970.
std::string scalar_event(double seconds, std::int64_t step,
                         const std::vector<std::pair<std::string, double>>& scalars);

double seconds_since_1970();  // by the system's clock

// Appends to events.out.tfevents.SECONDS.shoal in a folder, which is made; what is written is there at once. A
// run that goes on gives the same folder: TensorBoard shows its files as one.
//
//   observe::EventFile board("runs/first");
//   board.write(result.step, {{"loss", result.loss}, {"lr", result.learning_rate}});
class EventFile {
 public:
  // Throws Infeasible where it cannot be written.
  explicit EventFile(const std::filesystem::path& folder, double seconds = seconds_since_1970());
  // Scalars by tag, of that step; `seconds`: since 1970. Throws Infeasible where the disk takes no more.
  void write(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars,
             double seconds = seconds_since_1970());

 private:
  LineFile file_;
};

}  // namespace shoal::observe
