// SPDX-License-Identifier: Apache-2.0
// What all of these programs share. Each reads bytes that anybody could have written, by libFuzzer: what it reads
// is refused by an Error that is no fault of Shoal's own, or is the same when written and read again. Anything
// else (another exception, memory that is not its own, a promise of the language broken, ten seconds, 2 GB) ends
// the program and leaves the bytes in a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "shoal/base/error.h"

namespace shoal::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}
inline std::span<const std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

[[noreturn]] inline void give_up(const char* why, const char* what = "") {
  std::fprintf(stderr, "%s%s\n", why, what);
  std::abort();
}

// Whether it did it.
template <class Act>
bool refused_or_done(const Act& act) {
  try {
    act();
    return true;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) give_up("a fault of Shoal's own: ", error.what());
    return false;
  }
}

// read(text) is a value; write(value) a text that reads as the same.
template <class Read, class Write>
void reads_back(std::string_view text, const Read& read, const Write& write) {
  refused_or_done([&] {
    const auto value = read(text);
    const std::string again = write(value);
    try {
      if (read(again) != value) give_up("reads as another: ", again.c_str());
    } catch (const Error& error) {
      give_up("was written and is refused: ", concat(error.what(), '\n', again).c_str());
    }
  });
}

}  // namespace shoal::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
