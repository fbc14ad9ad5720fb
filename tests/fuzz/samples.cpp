// SPDX-License-Identifier: Apache-2.0
// Lines of samples, where a reader was, and measures of clicks.
#include "shoal/base/crc32c.h"
#include "shoal/data/click_metrics.h"
#include "shoal/data/criteo.h"
#include "shoal/data/multi_slot.h"
#include "shoal/data/sample_reader.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  const auto text = fuzz::text_of(data, size);
  static const data::CriteoParser criteo;
  static const data::MultiSlotParser slots({{"label", data::SlotKind::Label},
                                            {"a", data::SlotKind::Ids},
                                            {"x", data::SlotKind::Numbers},
                                            {"b", data::SlotKind::Ids}});
  for (const data::LineParser* parser :
       {static_cast<const data::LineParser*>(&criteo), static_cast<const data::LineParser*>(&slots)}) {
    data::SlotBatch batch;
    const auto wrong = parser->add(text, batch);
    if (wrong.has_value() != (batch.size() == 0)) fuzz::give_up("a line is refused and added");
    if (wrong && wrong->why.empty()) fuzz::give_up("refused without a reason");
  }
  fuzz::reads_back(
      text, [](std::string_view position) { return data::read_position_from_text(position); },
      [](const data::ReadPosition& position) { return data::to_text(position); });
  fuzz::refused_or_done([&] { data::ClickMetrics::from_bytes(std::string(text) + hex(crc32c(text))); });
  return 0;
}
