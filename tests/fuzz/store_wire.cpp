// SPDX-License-Identifier: Apache-2.0
// What a store's client and server say, and the calls that ranks write into it.
#include "shoal/comm/call_log.h"
#include "shoal/rendezvous/wire.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  namespace wire = rendezvous::wire;
  const auto text = fuzz::text_of(data, size);
  const auto write = [](const auto& message) { return wire::to_bytes(message); };
  fuzz::reads_back(text, [](std::string_view bytes) { return wire::request_of(bytes); }, write);
  fuzz::reads_back(text, [](std::string_view bytes) { return wire::reply_of(bytes); }, write);
  fuzz::refused_or_done([&] {
    const auto log = comm::CallLog::from_text(text, 4);
    const std::string again = log.to_text();
    if (comm::CallLog::from_text(again, 4).to_text() != again) fuzz::give_up("reads as another");
    comm::difference(0, log, 1, comm::CallLog(4));
  });
  return 0;
}
