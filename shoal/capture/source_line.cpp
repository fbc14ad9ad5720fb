// SPDX-License-Identifier: Apache-2.0
// Walks this thread's stack outwards and takes the first frame that is neither LibTorch's, nor the standard
// library's, nor Shoal's own.
#include "shoal/capture/source_line.h"

#include <torch/csrc/profiler/unwind/unwind.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>

namespace shoal::capture {

static bool contains_any(std::string_view text, const auto& parts) {
  return std::ranges::any_of(
      parts, [&](std::string_view part) { return text.find(part) != std::string_view::npos; });
}

// Without line information the symbolizer gives the library's path and an offset in it.
static bool has_source_file(const torch::unwind::Frame& frame) {
  static constexpr std::array<std::string_view, 8> kEndings = {".cpp", ".cc", ".cxx", ".h",
                                                               ".hpp", ".hh", ".cu",  ".cuh"};
  for (const auto ending : kEndings)
    if (frame.filename.ends_with(ending)) return frame.lineno != 0;
  return false;
}

static bool is_library_code(const torch::unwind::Frame& frame) {
  static constexpr std::array<std::string_view, 6> kFolders = {"/torch/include/", "/include/c++/",
                                                               "/shoal/aten/",    "/shoal/capture/",
                                                               "/shoal/runtime/", "/shoal/train/"};
  static constexpr std::array<std::string_view, 4> kLibraries = {"/libtorch", "/libc10", "/libstdc++",
                                                                 "/libc."};
  if (frame.filename.ends_with("_test.cpp")) return false;
  if (has_source_file(frame)) return contains_any(frame.filename, kFolders);
  return contains_any(frame.filename, kLibraries) || frame.funcname.empty() || frame.funcname == "??" ||
         frame.funcname.find("shoal::") != std::string::npos;
}

std::string user_source_line() {
  try {
    const auto addresses = torch::unwind::unwind();
    for (const auto& frame : torch::unwind::symbolize(addresses, torch::unwind::Mode::fast)) {
      if (is_library_code(frame)) continue;
      const auto function = frame.funcname.substr(0, frame.funcname.find('('));
      if (!has_source_file(frame)) return function;
      return frame.filename + ":" + std::to_string(frame.lineno) + " (" + function + ")";
    }
  } catch (const std::exception&) {
    // Stripped or unreadable debug information: the message goes without a line.
  }
  return "";
}

}  // namespace shoal::capture
