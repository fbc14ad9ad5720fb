// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/output.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace shoal::elastic {

static constexpr std::size_t kLongestLine = 64 << 10;

std::string Lines::line(std::string_view text) {
  if (!text.starts_with("frame #"))
    last_.emplace_back(text.substr(0, 1000));  // LibTorch's, dozens after an error
  if (last_.size() > most_kept_) last_.pop_front();
  return prefix_ + std::string(text) + "\n";
}

std::string Lines::take(std::string_view bytes) {
  std::string printed;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    open_ += bytes.substr(0, end);
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    if (end == std::string_view::npos && open_.size() < kLongestLine) break;
    printed += line(open_);
    open_.clear();
  }
  return printed;
}

std::string Lines::rest() {
  if (open_.empty()) return "";
  const std::string text = line(open_);
  open_.clear();
  return text;
}

void print(int descriptor, std::string_view text) noexcept {
  constexpr int kPatience = 5000;  // ms
  while (!text.empty()) {
    pollfd wanted = {.fd = descriptor, .events = POLLOUT, .revents = 0};
    if (poll(&wanted, 1, kPatience) == 0) return;
    // A pipe that is ready takes this much without blocking.
    const ssize_t wrote = write(descriptor, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (wrote < 0 && errno != EINTR && errno != EAGAIN) return;
    if (wrote > 0) text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

}  // namespace shoal::elastic
