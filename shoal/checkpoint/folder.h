// SPDX-License-Identifier: Apache-2.0
// The folder of a run's checkpoints: what names mean, and which checkpoints go when a new one is whole. No
// I/O.
//
//   step_00000100/                    whole: it was renamed to this when all was on the disk
//   .step_00000200-partial-4711/      being written, or left by a process that was killed
//   .step_00000050-removed-4711/      on its way out
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::checkpoint {

inline constexpr std::string_view kManifestName = "manifest.json";

std::string name_of_step(std::int64_t step);
std::optional<std::int64_t> step_of(std::string_view name);  // nullopt: it is no checkpoint
bool is_leftover(std::string_view name);                     // of a writer that did not get to its end

std::vector<std::int64_t> steps_among(std::span<const std::string> names);  // ascending
// What to remove so that the newest `keep` stay; 0 keeps all.
std::vector<std::int64_t> superseded(std::span<const std::int64_t> steps, std::int64_t keep);

}  // namespace shoal::checkpoint
