// SPDX-License-Identifier: Apache-2.0
#include "shoal/observe/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace shoal::observe {

static constexpr double kWidth = 720, kHeight = 360;
static constexpr double kLeft = 56, kRight = 16, kTop = 32, kBottom = 36;  // margins
static constexpr std::size_t kMostPoints = 400;

static std::string number(double value, const char* format = "%.1f") {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

static std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text)
    result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return result;
}

static std::vector<Point> finite(const std::vector<Point>& points) {
  std::vector<Point> result;
  std::ranges::copy_if(points, std::back_inserter(result),
                       [](const Point& p) { return std::isfinite(p.loss); });
  return result;
}

// Means of neighbours, so that no picture has more points than pixels.
static std::vector<Point> thinned(const std::vector<Point>& points) {
  const std::size_t group = (points.size() + kMostPoints - 1) / kMostPoints;
  std::vector<Point> result;
  for (std::size_t begin = 0; begin < points.size(); begin += std::max<std::size_t>(group, 1)) {
    const std::size_t end = std::min(begin + group, points.size());
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += points[i].loss;
    result.push_back({points[end - 1].step, sum / static_cast<double>(end - begin)});
  }
  return result;
}

namespace {

// From steps and losses to places in the picture.
struct Frame {
  double first_step = 0, last_step = 1, least = 0, most = 1;

  double x(double step) const {
    return kLeft + (step - first_step) / (last_step - first_step) * (kWidth - kLeft - kRight);
  }
  double y(double loss) const { return kTop + (most - loss) / (most - least) * (kHeight - kTop - kBottom); }
};

}  // namespace

static Frame frame_of(const std::vector<Point>& training, const std::vector<Point>& validation) {
  std::vector<Point> all = training;
  all.insert(all.end(), validation.begin(), validation.end());
  if (all.empty()) return {};
  const auto [first, last] = std::ranges::minmax(all, {}, &Point::step);
  const auto [least, most] = std::ranges::minmax(all, {}, &Point::loss);
  const double room = std::max((most.loss - least.loss) * 0.05, 1e-6);
  return {.first_step = static_cast<double>(first.step),
          .last_step = static_cast<double>(std::max(last.step, first.step + 1)),
          .least = least.loss - room,
          .most = most.loss + room};
}

static std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\">" + text +
         "</text>\n";
}

std::string loss_curve(const std::vector<Point>& training, const std::vector<Point>& validation,
                       const std::string& title) {
  const auto line = thinned(finite(training));
  const auto dots = finite(validation);
  const Frame frame = frame_of(line, dots);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kWidth, "%.0f") +
                    " " + number(kHeight, "%.0f") +
                    "\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#444\">\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += text_at(kLeft, kTop - 14, "start", escaped(title));
  constexpr int kTicks = 5;
  for (int tick = 0; tick < kTicks; ++tick) {
    const double share = tick / double{kTicks - 1};
    const double loss = frame.least + share * (frame.most - frame.least);
    const double step = std::round(frame.first_step + share * (frame.last_step - frame.first_step));
    svg += "<path d=\"M" + number(kLeft) + " " + number(frame.y(loss)) + "H" + number(kWidth - kRight) +
           "\" stroke=\"#ddd\"/>\n";
    svg += text_at(kLeft - 6, frame.y(loss) + 4, "end", number(loss, "%.3g"));
    svg += text_at(frame.x(step), kHeight - kBottom + 18, "middle", number(step, "%.0f"));
  }
  std::string path;
  for (const Point& point : line)
    path += (path.empty() ? "M" : "L") + number(frame.x(static_cast<double>(point.step))) + " " +
            number(frame.y(point.loss));
  svg += "<path d=\"" + path + "\" fill=\"none\" stroke=\"#1f6fb4\" stroke-width=\"1.5\"/>\n";
  for (const Point& point : dots)
    svg += "<circle cx=\"" + number(frame.x(static_cast<double>(point.step))) + "\" cy=\"" +
           number(frame.y(point.loss)) + "\" r=\"3\" fill=\"#d9541e\"/>\n";
  if (!dots.empty()) svg += text_at(kWidth - kRight, kTop - 14, "end", "line: training, dots: held out");
  return svg + "</svg>\n";
}

}  // namespace shoal::observe
