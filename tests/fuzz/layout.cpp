// SPDX-License-Identifier: Apache-2.0
// Layouts and meshes, as plans and messages have them.
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  fuzz::reads_back(
      fuzz::text_of(data, size), [](std::string_view text) { return sharding::layout_from_text(text); },
      [](const sharding::Layout& layout) { return sharding::to_text(layout); });
  fuzz::reads_back(
      fuzz::text_of(data, size), [](std::string_view text) { return sharding::mesh_from_text(text); },
      [](const sharding::Mesh& mesh) { return sharding::to_text(mesh); });
  return 0;
}
