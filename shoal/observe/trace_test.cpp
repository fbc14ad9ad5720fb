// SPDX-License-Identifier: Apache-2.0
#include "shoal/observe/trace.h"

#include <doctest/doctest.h>

using namespace shoal::observe;

TEST_CASE("a span records where it began and ended") {
  Trace trace{.rank = 3};
  {
    const Span span(&trace, "aten::mm", 64);
  }
  REQUIRE(trace.events.size() == 1);
  const Event& event = trace.events[0];
  CHECK(event == Event{3, "compute", "aten::mm", event.begin, event.end, 64});
  CHECK(event.begin > 0);
  CHECK(event.end >= event.begin);
}

TEST_CASE("a span without a trace does nothing") { const Span span(nullptr, "aten::mm"); }

TEST_CASE("a full trace counts what it drops") {
  Trace trace{.capacity = 1};
  for (int i = 0; i < 3; ++i) const Span span(&trace, "step");
  CHECK(trace.events.size() == 1);
  CHECK(trace.dropped == 2);
}

TEST_CASE("a trace reads back as it was written") {
  Trace trace{.rank = 1, .capacity = 8, .events = {{1, "copy", "a \"name\"", 5, 9, 0, 7}}, .dropped = 2};
  CHECK(to_text(trace) == "trace rank 1 capacity 8 dropped 2\n1 \"copy\" \"a \\\"name\\\"\" 5 9 0 7\n");
  CHECK(from_text(to_text(trace)) == trace);
  CHECK_THROWS_WITH(from_text("trace rank 1 capacity 8 dropped 2\n1 x\n"),
                    "trace: line 2 is not an event: 1 x");
}
