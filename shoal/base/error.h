// SPDX-License-Identifier: Apache-2.0
// The one exception type. Its kind says what to do about it; its message says which part, what, wanted, got.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shoal {

enum class ErrorKind {  // what to do about an error
  InvalidInput,         // the user can mend it: a recipe, a model, an argument, a file that is not there
  Infeasible,           // well-formed, but no way to do it here: no memory, no disk space
  PeerLost,             // another rank stopped
  Timeout,              // a wait went past its limit
  Corrupt,              // bytes that were stored or sent are not what they were
  Internal,             // a fault of Shoal's own
};

// What every function of Shoal throws.
class Error : public std::runtime_error {
 public:
  // `message`: which part, what, wanted, got, and the remedy.
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }  // what to do about it

 private:
  ErrorKind kind_;
};

std::string_view name_of(ErrorKind kind);  // "invalid input", …

// All parts, streamed one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {  // throws Error, its message of all parts
  throw Error(kind, concat(parts...));
}

}  // namespace shoal

// Throws Error(kind, message parts) unless the condition holds; the message is built only then.
#define SHOAL_CHECK(condition, kind, ...)                   \
  do {                                                      \
    if (!(condition)) [[unlikely]]                          \
      ::shoal::fail(::shoal::ErrorKind::kind, __VA_ARGS__); \
  } while (false)
