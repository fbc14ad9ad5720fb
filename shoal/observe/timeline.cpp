// SPDX-License-Identifier: Apache-2.0
// The page has the events as data and draws what is in view, so that a million of them still move.
#include "shoal/observe/timeline.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::observe {

using nlohmann::json;

// What follows the data.
static constexpr std::string_view kPage = R"(</script>
<style>
body { font: 13px system-ui, sans-serif; margin: 12px; color: #222; background: #fff; }
h1 { font-size: 15px; margin: 0 0 6px; }
#legend span { display: inline-block; margin-right: 14px; }
#legend i { display: inline-block; width: 11px; height: 11px; margin-right: 4px; }
#tip { position: fixed; display: none; background: #222; color: #fff; padding: 4px 7px; border-radius: 3px;
       pointer-events: none; white-space: pre; }
canvas { display: block; margin-top: 8px; width: 100%; cursor: grab; }
</style>
<h1></h1><div id="legend"></div><canvas></canvas><div id="tip"></div>
<script>
const LEFT = lanes.some(lane => lane.what) ? 200 : 132, TOP = 22;
const canvas = document.querySelector("canvas"), tip = document.getElementById("tip");
const pen = canvas.getContext("2d"), last = Math.max(1, ...lanes.map(lane => lane.last));
const most = Math.max(1, ...lanes.flatMap(lane => lane.memory ? [lane.most] : []));
let begin = 0, end = last, drag = null;

// Nanoseconds as people read them; with the digits that tell ticks so far apart from each other.
function text(time, step) {
  const size = step ? last : time;
  const [unit, name] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const digits = step ? Math.min(9, Math.max(0, Math.ceil(-Math.log10(step / unit)))) : unit > 1 ? 3 : 0;
  return (time / unit).toFixed(digits) + " " + name;
}
let height = TOP;
for (const lane of lanes) {
  lane.top = height + (lane.first ? 6 : 1);
  lane.height = lane.memory ? 34 : lane.stream === "compute" ? 22 : 11;
  height = lane.top + lane.height;
}
const x = time => LEFT + (time - begin) / (end - begin) * (canvas.clientWidth - LEFT);
const time = px => begin + (px - LEFT) / (canvas.clientWidth - LEFT) * (end - begin);

// The first event of a lane that ends after a time.
function after(lane, time) {
  let low = 0, high = lane.events.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.events[middle][1] > time) high = middle; else low = middle + 1;
  }
  return low;
}
// The last of a lane's samples of memory that is not after a time; -1 where there is none yet.
function held(lane, time) {
  let low = 0, high = lane.memory.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.memory[middle][0] <= time) low = middle + 1; else high = middle;
  }
  return low - 1;
}
function size(bytes) {
  const power = Math.min(4, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return (bytes / 1024 ** power).toFixed(power ? 1 : 0) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][power];
}
// The most in each pixel.
function drawMemory(lane, width) {
  let column = -1, tallest = 0;
  const flush = () => {
    if (column >= 0) pen.fillRect(column, lane.top + lane.height - tallest, 1, tallest);
  };
  pen.fillStyle = "#8fa9c4";
  for (let i = Math.max(held(lane, begin), 0); i < lane.memory.length && lane.memory[i][0] < end; ++i) {
    const [from, bytes] = lane.memory[i], tall = bytes / most * lane.height;
    const left = Math.floor(Math.max(x(from), LEFT));
    const right = Math.floor(Math.min(i + 1 < lane.memory.length ? x(lane.memory[i + 1][0]) : x(lane.last), width));
    if (left !== column) { flush(); column = left; tallest = 0; }
    tallest = Math.max(tallest, tall);
    if (right <= left) continue;
    flush();
    pen.fillRect(left + 1, lane.top + lane.height - tall, right - left - 1, tall);
    column = right; tallest = tall;
  }
  flush();
}
function draw() {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = width * ratio; canvas.height = (height + 4) * ratio;
  canvas.style.height = height + 4 + "px";
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
  const raw = (end - begin) / Math.max(2, (width - LEFT) / 110), power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= raw);
  pen.textAlign = "center";
  for (let tick = Math.ceil(begin / step) * step; tick <= end; tick += step) {
    pen.fillStyle = "#ddd"; pen.fillRect(x(tick), TOP - 4, 1, height);
    pen.fillStyle = "#555"; pen.fillText(text(tick, step), Math.min(x(tick), width - 28), 9);
  }
  for (const lane of lanes) {
    const middle = lane.top + lane.height / 2;
    pen.textAlign = "left"; pen.fillStyle = "#555";
    if (lane.first) pen.fillText("rank " + lane.rank, 0, middle);
    pen.fillText(lane.stream + (lane.what ? ", " + lane.what : ""), 56, middle, LEFT - 60);
    pen.fillStyle = "#f3f3f3"; pen.fillRect(LEFT, lane.top, width - LEFT, lane.height);
    if (lane.memory) {
      drawMemory(lane, width);
      continue;
    }
    pen.textAlign = "center";
    let drawn = -1;  // to this pixel: what is narrower and before it is not seen
    for (let i = after(lane, begin); i < lane.events.length && lane.events[i][0] < end; ++i) {
      const [from, to, kind, name] = lane.events[i];
      const left = Math.max(x(from), LEFT), right = Math.min(x(to), width);
      if (right < drawn + 0.5) continue;
      drawn = right;
      pen.fillStyle = kinds[kind].colour;
      pen.fillRect(left, lane.top, Math.max(right - left - (right - left > 3 ? 1 : 0), 0.5), lane.height);
      if (lane.height > 12 && right - left > pen.measureText(name).width + 4) {
        pen.fillStyle = "#fff"; pen.fillText(name, (left + right) / 2, middle);
      }
    }
  }
}
function saidOfEvent(lane, time) {
  const hit = lane.events[after(lane, time)];
  if (hit === undefined || hit[0] > time) return "";
  return `${hit[3]}  ${text(hit[1] - hit[0])}\n${text(hit[0])} to ${text(hit[1])}`;
}
function saidOfMemory(lane, time) {
  const at = held(lane, time);
  if (at < 0 || time > lane.last) return "";
  return `${size(lane.memory[at][1])} of ${size(lane.most)} at most\nfrom ${text(lane.memory[at][0])} on`;
}
function point(event) {
  const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
  const lane = lanes.find(lane => py >= lane.top && py < lane.top + lane.height);
  const said = lane && px >= LEFT ? (lane.memory ? saidOfMemory : saidOfEvent)(lane, time(px)) : "";
  tip.style.display = said ? "block" : "none";
  if (!said) return;
  tip.textContent = `${said}\nrank ${lane.rank}, ${lane.stream}` + (lane.what ? ", " + lane.what : "");
  tip.style.left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 4) + "px";
  tip.style.top = event.clientY + 14 + "px";
}
function show(from, to) {
  const width = Math.min(Math.max(to - from, last * 1e-7), last);
  begin = Math.min(Math.max(from, 0), last - width);
  end = begin + width;
  draw();
}
canvas.addEventListener("wheel", event => {
  event.preventDefault();
  const at = time(event.clientX - canvas.getBoundingClientRect().left), factor = 1.2 ** Math.sign(event.deltaY);
  show(at - (at - begin) * factor, at + (end - at) * factor);
}, {passive: false});
canvas.addEventListener("mousedown", event => drag = {x: event.clientX, begin, end});
window.addEventListener("mouseup", () => drag = null);
canvas.addEventListener("mouseleave", () => tip.style.display = "none");
canvas.addEventListener("dblclick", () => show(0, last));
canvas.addEventListener("mousemove", event => {
  if (!drag) return point(event);
  const by = (drag.x - event.clientX) / (canvas.clientWidth - LEFT) * (drag.end - drag.begin);
  show(drag.begin + by, drag.end + by);
});
document.querySelector("h1").textContent = document.title = title;
for (const {name, colour} of kinds) {
  const mark = document.createElement("i"), row = document.createElement("span");
  mark.style.background = colour;
  row.append(mark, name);
  document.getElementById("legend").append(row);
}
window.addEventListener("resize", draw);
draw();
</script>
)";

constexpr std::array<std::string_view, 10> kColours = {"#4e79a7", "#b07aa1", "#76b7b2", "#e15759", "#9c755f",
                                                       "#edc948", "#f28e2b", "#59a14f", "#ff9da7", "#8d8683"};

// The same name has the same colour on every page, unless another one has it already.
static std::vector<std::string_view> colours_of(const std::vector<std::string>& kinds) {
  std::vector<std::string_view> chosen;
  for (const std::string& kind : kinds) {
    std::size_t place = 0;
    for (const char c : kind) place += static_cast<unsigned char>(c);
    const auto is_taken = [&] {
      return std::ranges::find(chosen, kColours[place % kColours.size()]) != chosen.end();
    };
    for (std::size_t i = 0; i < kColours.size() && is_taken(); ++i) ++place;
    chosen.push_back(kColours[place % kColours.size()]);
  }
  return chosen;
}

// As JavaScript reads it inside a page.
static std::string text_of(const json& value) {
  std::string text;
  for (const char c : value.dump(-1, ' ', false, json::error_handler_t::replace))
    text += c == '<' ? "\\u003c" : std::string(1, c);
  return text;
}

static std::string kind_of(const std::string& name) {
  std::string kind;
  for (const char c : name)
    if (c < '0' || c > '9') kind += c;
  return kind;
}

namespace {

// The lanes of all drawings, as text; and the names that have a colour.
class Lanes {
 public:
  explicit Lanes(const std::vector<Drawing>& drawings) {
    // A rank's lanes are together, those of a drawing too, "compute" first.
    for (std::size_t i = 0; i < drawings.size(); ++i)
      for (const Event& event : drawings[i].trace->events)
        lanes_[{event.rank, i, event.stream == "compute" ? "" : event.stream}].push_back(&event);
    std::vector<std::int64_t> firsts;
    for (const Drawing& drawing : drawings) {
      firsts.push_back(std::numeric_limits<std::int64_t>::max());
      for (const Event& event : drawing.trace->events) firsts.back() = std::min(firsts.back(), event.begin);
    }
    for (auto lane = lanes_.begin(); lane != lanes_.end(); ++lane) {
      const auto& [rank, drawing, stream] = lane->first;
      add(rank, drawings[drawing].what, stream, lane->second, firsts[drawing]);
      const auto next = std::next(lane);
      const bool is_last =
          next == lanes_.end() || std::get<0>(next->first) != rank || std::get<1>(next->first) != drawing;
      if (is_last) add_memory(rank, drawings[drawing].what);
    }
  }
  const std::string& text() const { return text_; }
  const std::vector<std::string>& kinds() const { return kinds_; }

 private:
  void add(int rank, const std::string& what, const std::string& stream, std::vector<const Event*>& events,
           std::int64_t first) {
    std::ranges::stable_sort(events, {}, &Event::begin);
    std::int64_t last = 0;
    json rows = json::array();
    for (const Event* event : events) {
      const auto [kind, is_new] = place_of_.try_emplace(kind_of(event->name), kinds_.size());
      if (is_new) kinds_.push_back(kind->first);
      rows.push_back({event->begin - first, event->end - first, kind->second, event->name});
      last = std::max(last, event->end - first);
      if (event->memory > 0) memory_.emplace_back(event->end - first, event->memory);
    }
    put({{"rank", rank},
         {"what", what},
         {"stream", stream.empty() ? "compute" : stream},
         {"first", std::exchange(last_rank_, rank) != rank},
         {"last", last},
         {"events", std::move(rows)}});
    last_ = std::max(last_, last);
  }

  void add_memory(int rank, const std::string& what) {
    std::ranges::stable_sort(memory_);
    json rows = json::array();
    std::int64_t most = 0, now = -1;
    for (const auto& [time, bytes] : memory_) {
      if (std::exchange(now, bytes) != bytes) rows.push_back({time, bytes});
      most = std::max(most, bytes);
    }
    if (!memory_.empty())
      put({{"rank", rank},
           {"what", what},
           {"stream", "memory"},
           {"first", false},
           {"last", last_},
           {"most", most},
           {"memory", std::move(rows)}});
    memory_.clear();
    last_ = 0;
  }

  void put(const json& lane) { text_ += concat(text_.empty() ? "" : ",\n", text_of(lane)); }

  std::map<std::tuple<int, std::size_t, std::string>, std::vector<const Event*>> lanes_;
  std::vector<std::string> kinds_;
  std::unordered_map<std::string, std::size_t> place_of_;
  std::string text_;
  std::optional<int> last_rank_;
  // Of the rank and drawing whose lanes are added.
  std::vector<std::pair<std::int64_t, std::int64_t>> memory_;  // when, bytes
  std::int64_t last_ = 0;
};

}  // namespace

std::string timeline_html(const std::vector<Drawing>& drawings, const std::string& title) {
  const Lanes lanes(drawings);
  json legend = json::array();
  const std::vector<std::string_view> colours = colours_of(lanes.kinds());
  for (std::size_t i = 0; i < lanes.kinds().size(); ++i)
    legend.push_back({{"name", lanes.kinds()[i]}, {"colour", colours[i]}});
  std::int64_t num_dropped = 0;
  for (const Drawing& drawing : drawings) num_dropped += drawing.trace->dropped;
  const std::string dropped = num_dropped > 0 ? concat(" (", num_dropped, " events were dropped)") : "";
  return concat(
      "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<script>\nconst title = ", text_of(title + dropped),
      ";\nconst kinds = ", text_of(legend), ";\nconst lanes = [", lanes.text(), "];\n", kPage);
}

}  // namespace shoal::observe
