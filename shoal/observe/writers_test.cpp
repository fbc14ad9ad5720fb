// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/observe/chrome_trace.h"
#include "shoal/observe/file.h"
#include "shoal/observe/loss_curve.h"
#include "shoal/observe/summary.h"
#include "shoal/observe/tensorboard.h"
#include "shoal/observe/timeline.h"

using namespace shoal;
using namespace shoal::observe;
namespace fs = std::filesystem;

static std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

static fs::path temporary_folder() {
  std::string name = (fs::temp_directory_path() / "shoal_observe_XXXXXX").string();
  return ::mkdtemp(name.data());
}

TEST_CASE("a step's line has torchtitan's words") {
  const StepSummary summary = {.step = 7,
                               .loss = 4.31,
                               .grad_norm = 1.2,
                               .memory_bytes = std::int64_t{3} << 29,
                               .tokens_per_second = 5120.4,
                               .flops_per_second = 5e10,
                               .peak_flops_per_second = 2e11,
                               .seconds_left = 200};
  CHECK(to_line(summary) ==
        "step:  7  loss:  4.3100  grad_norm:  1.2000  memory: 1.5GiB  tps: 5,120  tflops: 0.050  mfu: 25.00% "
        " left: "
        "3m20s");
}

TEST_CASE("a step's line leaves out what is not known") {
  CHECK(to_line({.step = 12}) == "step: 12  loss:  0.0000  grad_norm:  0.0000  memory: 0B  tps: 0  left: 0s");
  const std::string line = to_line({.flops_per_second = 1e12});
  CHECK(line.find("tflops: 1.000") != std::string::npos);
  CHECK(line.find("mfu") == std::string::npos);
}

TEST_CASE("numbers and times read as people write them") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(-1234567) == "-1,234,567");
  CHECK(human_seconds(59.4) == "59s");
  CHECK(human_seconds(60) == "1m00s");
  CHECK(human_seconds(7500) == "2h05m");
}

TEST_CASE("what this process alone has is in its peak, also after it has given it back") {
  static constexpr std::int64_t kBytes = std::int64_t{16} << 20;
  const std::int64_t before = peak_memory_bytes(memory_now().of_others);
  {
    const std::vector<char> touched(kBytes, 'x');
    CHECK(touched.back() == 'x');
    CHECK(memory_now().proportional > kBytes);
  }
  // A look may itself take a page, so the peak lies between those of two.
  const std::int64_t first = peak_memory_bytes(0);
  const std::int64_t less = peak_memory_bytes(kBytes);
  CHECK(less >= first - kBytes);
  CHECK(less <= peak_memory_bytes(0) - kBytes);
  CHECK(peak_memory_bytes(memory_now().of_others) - before > kBytes / 2);  // before is that of earlier cases
}

TEST_CASE(
    "a chrome trace has a span an event, in microseconds, a thread a stream, and says what was dropped") {
  Trace trace;
  trace.events = {{.rank = 2, .stream = "compute", .name = "mm", .begin = 5000, .end = 7500, .bytes = 64},
                  {.rank = 2, .stream = "copy", .name = "\"x\"", .begin = 6000, .end = 6000}};
  trace.dropped = 3;
  CHECK(chrome_trace(trace) ==
        R"({"otherData":{"dropped":3},"traceEvents":[)"
        R"({"args":{"name":"rank 2"},"name":"process_name","ph":"M","pid":2,"tid":0},)"
        R"({"args":{"name":"compute"},"name":"thread_name","ph":"M","pid":2,"tid":0},)"
        R"({"args":{"bytes":64},"dur":2.5,"name":"mm","ph":"X","pid":2,"tid":0,"ts":0.0},)"
        R"({"args":{"name":"rank 2"},"name":"process_name","ph":"M","pid":2,"tid":1},)"
        R"({"args":{"name":"copy"},"name":"thread_name","ph":"M","pid":2,"tid":1},)"
        R"({"dur":0.0,"name":"\"x\"","ph":"X","pid":2,"tid":1,"ts":1.0}]})");
}

TEST_CASE("a file is replaced whole and lines are there at once") {
  const fs::path folder = temporary_folder();
  write_file(folder / "a", "one");
  write_file(folder / "a", "two");
  CHECK(text_of(folder / "a") == "two");
  LineFile lines(folder / "lines");
  lines.write("first");
  lines.write("second");
  CHECK(text_of(folder / "lines") == "first\nsecond\n");
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 2);
  fs::remove_all(folder);
}

TEST_CASE("a full disk is an error that names the file and the way out") {
  if (!fs::exists("/dev/full")) return;
  LineFile lines("/dev/full");
  CHECK_THROWS_WITH_AS(
      lines.write("x"),
      "cannot write /dev/full: No space left on device; free some space there, or write elsewhere "
      "with --job.dump_folder=FOLDER",
      Error);
}

TEST_CASE("a folder that cannot be made is an error that names it") {
  const fs::path folder = temporary_folder();
  write_file(folder / "file", "");
  const std::string below = (folder / "file" / "runs").string();
  const std::string expected =
      "cannot make the folder " + below +
      ": Not a directory; choose a folder that can be written with --job.dump_folder=FOLDER";
  CHECK_THROWS_WITH_AS(make_folder(below), expected.c_str(), Error);
  make_folder(folder / "x" / "y");
  CHECK(fs::is_empty(folder / "x" / "y"));
  fs::remove_all(folder);
}

TEST_CASE("processes that make one folder at the same time do not take each other's probe away") {
  const fs::path folder = temporary_folder();
  std::atomic<int> failures = 0;
  {
    std::vector<std::jthread> makers;
    for (int i = 0; i < 4; ++i)
      makers.emplace_back([&] {
        for (int round = 0; round < 200; ++round) try {
            make_folder(folder / "out");
          } catch (const Error&) {
            ++failures;
          }
      });
  }
  CHECK(failures == 0);
  CHECK(fs::is_empty(folder / "out"));
  fs::remove_all(folder);
}

// Bytes as two digits each.
static std::string digits(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    char pair[3];
    std::snprintf(pair, sizeof(pair), "%02x", static_cast<unsigned char>(c));
    text += pair;
  }
  return text;
}

TEST_CASE("events are the messages of event.proto") {
  // Event(wall_time=1.5, file_version="brain.Event:2"), and
  // Event(wall_time=2.0, step=300, summary=Summary(value=[Value(tag="loss", simple_value=0.5)])).
  CHECK(digits(scalar_event(1.5, 0, {})) == "09000000000000f83f1a0d627261696e2e4576656e743a32");
  CHECK(digits(scalar_event(2.0, 300, {{"loss", 0.5}})) ==
        "09000000000000004010ac022a0d0a0b0a046c6f7373150000003f");
}

TEST_CASE("a record is framed by its length and two checksums") {
  const std::string record = record_of("abc");
  CHECK(record.size() == 8 + 4 + 3 + 4);
  CHECK(digits(record.substr(0, 8)) == "0300000000000000");
  CHECK(record.substr(12, 3) == "abc");
  CHECK(digits(record.substr(8, 4)) == digits(record_of("xyz").substr(8, 4)));  // of the length alone
  CHECK(digits(record.substr(15)) != digits(record_of("xyz").substr(15)));
}

TEST_CASE("an event file begins with its version and has each event at once") {
  const fs::path folder = temporary_folder();
  EventFile events(folder / "tb", 7.0);
  events.write(1, {{"loss", 0.25}}, 8.0);
  const std::string text = text_of(folder / "tb" / "events.out.tfevents.7.shoal");
  CHECK(text == record_of(scalar_event(7.0, 0, {})) + record_of(scalar_event(8.0, 1, {{"loss", 0.25}})));
  fs::remove_all(folder);
}

TEST_CASE("a loss curve is one line and a dot a validation, and leaves out what is not finite") {
  const std::string svg = loss_curve({{1, 4.0}, {2, NAN}, {3, 2.0}}, {{3, 3.0}, {3, INFINITY}}, "a < b & c");
  CHECK(svg.starts_with("<svg xmlns="));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("a &lt; b &amp; c") != std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
  const auto path = svg.substr(svg.find("<path d=\"M56.0 45.3"));  // step 1 at the left, near the top
  CHECK(path.starts_with("<path d=\"M56.0 45.3L704.0 310.7\" fill=\"none\""));
  CHECK(svg.find("<circle") == svg.rfind("<circle"));
}

TEST_CASE("a loss curve of many steps has no more points than pixels, and of none is a picture") {
  std::vector<Point> points;
  for (std::int64_t step = 1; step <= 100'000; ++step)
    points.push_back({step, 1.0 / static_cast<double>(step)});
  const std::string svg = loss_curve(points, {}, "");
  CHECK(std::ranges::count(svg, 'L') <= 400);
  CHECK(svg.size() < 20'000);
  CHECK(loss_curve({}, {}, "").ends_with("</svg>\n"));
}

TEST_CASE("a file of lines goes on where it was") {
  const fs::path folder = temporary_folder();
  write_file(folder / "lines", "first\n");
  LineFile(folder / "lines", LineFile::Begin::Continue).write("second");
  CHECK(text_of(folder / "lines") == "first\nsecond\n");
  fs::remove_all(folder);
}

TEST_CASE(
    "a timeline page has a lane a stream, compute first, and one colour for names alike but for numbers") {
  const Trace trace = {.events = {{0, "a link", "1I0", 160, 170, 64},
                                  {0, "compute", "0F1", 130, 160, 0},
                                  {1, "compute", "1F0", 130, 140, 0},
                                  {0, "compute", "0F0", 100, 130, 0}},
                       .dropped = 2};
  const std::string page = timeline_html({{"", &trace}}, "a </script> of 2");
  CHECK(page.starts_with(
      "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<script>\n"
      "const title = \"a \\u003c/script> of 2 (2 events were dropped)\";\n"
      "const kinds = [{\"colour\":\"#4e79a7\",\"name\":\"F\"},{\"colour\":\"#e15759\",\"name\":\"I\"}];\n"
      "const lanes = [{\"events\":[[0,30,0,\"0F0\"],[30,60,0,\"0F1\"]],\"first\":true,\"last\":60,\"rank\":0,"
      "\"stream\":\"compute\",\"what\":\"\"},\n"
      "{\"events\":[[60,70,1,\"1I0\"]],\"first\":false,\"last\":70,\"rank\":0,\"stream\":\"a "
      "link\",\"what\":\"\"},\n"
      "{\"events\":[[30,40,0,\"1F0\"]],\"first\":true,\"last\":40,\"rank\":1,\"stream\":\"compute\",\"what\":"
      "\"\"}];\n"
      "</script>"));
  CHECK(page.find("http") == std::string::npos);  // it loads nothing
  CHECK(page.find("src=") == std::string::npos);
}

TEST_CASE("memory is a lane below a rank's others, and drawings lie below each other, each from 0 on") {
  const Trace measured = {
      .events = {{0, "compute", "mm", 1100, 1130, 0, 64}, {0, "a link", "send", 1110, 1150, 0}}};
  const Trace simulated = {.events = {{0, "compute", "mm", 0, 20, 0, 32},
                                      {0, "compute", "add", 20, 30, 0, 32},
                                      {0, "compute", "mm", 30, 40, 0, 96},
                                      {1, "compute", "mm", 0, 20, 0}}};
  const std::string page = timeline_html({{"measured", &measured}, {"simulated", &simulated}}, "");
  const auto has = [&](const std::string& text) { return page.find(text) != std::string::npos; };
  CHECK(
      has("{\"first\":false,\"last\":50,\"memory\":[[30,64]],\"most\":64,\"rank\":0,\"stream\":\"memory\","
          "\"what\":"
          "\"measured\"},\n{\"events\":[[0,20,0,\"mm\"]"));
  CHECK(has(
      "\"memory\":[[20,32],[40,96]],\"most\":96,\"rank\":0,\"stream\":\"memory\",\"what\":\"simulated\"},\n"
      "{\"events\":[[0,20,0,\"mm\"]],\"first\":true,\"last\":20,\"rank\":1"));
  CHECK(page.find("\"stream\":\"memory\"", page.find("\"rank\":1")) == std::string::npos);
  CHECK(chrome_trace(measured).find(R"({"args":{"bytes":64},"name":"memory","ph":"C","pid":0,"ts":0.03})") !=
        std::string::npos);
}

TEST_CASE("a timeline page gives other names other colours, while there are any") {
  Trace trace;
  std::set<std::string> colours;
  for (int i = 0; i < 10; ++i)
    trace.add({0, "compute", std::string(1, static_cast<char>('a' + i * 2)), 0, 1});
  std::string page = timeline_html({{"", &trace}}, "");
  for (std::size_t at = 0; (at = page.find("\"colour\":\"", at)) != std::string::npos; ++at)
    colours.insert(page.substr(at, 18));
  CHECK(colours.size() == 10);
}
