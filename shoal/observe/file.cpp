// SPDX-License-Identifier: Apache-2.0
#include "shoal/observe/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"

namespace shoal::observe {

[[noreturn]] static void fail_to(std::string_view what, const std::filesystem::path& path, int reason) {
  const std::string_view remedy =
      reason == ENOSPC || reason == EDQUOT
          ? "; free some space there, or write elsewhere with --job.dump_folder=FOLDER"
          : "; choose a folder that can be written with --job.dump_folder=FOLDER";
  fail(ErrorKind::Infeasible, "cannot ", what, " ", path.string(), ": ", std::strerror(reason), remedy);
}

static int open_to_write(const std::filesystem::path& path, int how) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, file_modes().file);
  if (descriptor < 0) fail_to("write", path, errno);
  return descriptor;
}

// 0, or the errno of what went wrong.
static int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ::ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  const std::filesystem::path unfinished = path.string() + ".unfinished";
  const int descriptor = open_to_write(unfinished, O_TRUNC);
  int reason = write_all(descriptor, bytes);
  if (reason == 0 && ::fsync(descriptor) != 0 && errno != EINVAL) reason = errno;
  if (::close(descriptor) != 0 && reason == 0) reason = errno;
  if (reason == 0 && std::rename(unfinished.c_str(), path.c_str()) != 0) reason = errno;
  if (reason != 0) {
    ::unlink(unfinished.c_str());
    fail_to("write", path, reason);
  }
}

void make_folder(const std::filesystem::path& folder) {
  if (const std::error_code error = make_folders(folder)) fail_to("make the folder", folder, error.value());
  std::string probe = (folder / ".shoal_can_write_XXXXXX").string();  // ranks of other hosts may be here too
  const int descriptor = ::mkostemp(probe.data(), O_CLOEXEC);
  if (descriptor < 0) fail_to("write", folder, errno);
  int reason = write_all(descriptor, "yes\n");
  if (reason == 0 && ::fsync(descriptor) != 0 && errno != EINVAL) reason = errno;
  ::close(descriptor);
  ::unlink(probe.c_str());
  if (reason != 0) fail_to("write", folder, reason);
}

LineFile::LineFile(std::filesystem::path path, Begin begin)
    : path_(std::move(path)), descriptor_(open_to_write(path_, begin == Begin::Empty ? O_TRUNC : O_APPEND)) {}

LineFile::~LineFile() { ::close(descriptor_); }

void LineFile::write(std::string_view line) { append(std::string(line) + "\n"); }

void LineFile::append(std::string_view bytes) {
  const int reason = write_all(descriptor_, bytes);
  if (reason != 0) fail_to("write", path_, reason);
}

}  // namespace shoal::observe
