// SPDX-License-Identifier: Apache-2.0
// Walks this thread's stack outwards and takes the first frame that is neither LibTorch's, nor the standard
// library's, nor Shoal's own.
#include "shoal/capture/source_line.h"

#include <torch/csrc/profiler/unwind/unwind.h>

#include <array>
#include <exception>
#include <string_view>

namespace shoal::capture {

static bool starts_with_any(std::string_view text, auto&& prefixes) {
  for (const std::string_view prefix : prefixes)
    if (text.starts_with(prefix)) return true;
  return false;
}

// Without line information the symbolizer gives the library's path and an offset in it.
static bool has_source_file(const torch::unwind::Frame& frame) {
  static constexpr std::array<std::string_view, 8> kEndings = {".cpp", ".cc", ".cxx", ".h", ".hpp", ".hh", ".cu", ".cuh"};
  for (const auto ending : kEndings)
    if (frame.filename.ends_with(ending)) return frame.lineno != 0;
  return false;
}

static bool is_library_code(const torch::unwind::Frame& frame) {
  static constexpr std::array<std::string_view, 6> kFolders = {"/torch/include/", "/include/c++/",    "/shoal/aten/",
                                                               "/shoal/capture/", "/shoal/runtime/", "/shoal/train/"};
  static constexpr std::array<std::string_view, 6> kNamespaces = {"at::", "c10::", "torch::", "std::", "shoal::", "_"};
  if (!has_source_file(frame))
    return frame.funcname.empty() || frame.funcname == "??" || starts_with_any(frame.funcname, kNamespaces);
  if (frame.filename.ends_with("_test.cpp")) return false;
  for (const auto folder : kFolders)
    if (frame.filename.find(folder) != std::string::npos) return true;
  return false;
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
