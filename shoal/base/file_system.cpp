// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/file_system.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/names.h"
#include "shoal/base/text.h"

namespace shoal {

namespace fs = std::filesystem;

[[noreturn]] static void fail_to(std::string_view what, const fs::path& path, int reason) {
  fail(ErrorKind::Infeasible, "cannot ", what, " ", path.string(), ": ", std::strerror(reason),
       reason == ENOSPC || reason == EDQUOT ? "; free some space there" : "");
}

namespace {

class DiskOutput final : public OutputFile {
 public:
  explicit DiskOutput(const fs::path& path)
      : path_(path),
        descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, file_modes().file)) {
    if (descriptor_ < 0) fail_to("write", path_, errno);
  }
  ~DiskOutput() override { ::close(descriptor_); }

  void write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ::ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_to("write", path_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void sync() override {
    if (::fsync(descriptor_) != 0) fail_to("write", path_, errno);
  }

 private:
  fs::path path_;
  int descriptor_;
};

class DiskInput final : public InputFile {
 public:
  explicit DiskInput(const fs::path& path)
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    SHOAL_CHECK(descriptor_ >= 0, InvalidInput, "cannot read ", path_.string(), ": ", std::strerror(errno));
    struct ::stat status = {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(descriptor_);
      fail(ErrorKind::InvalidInput, "cannot read ", path_.string(), ": it is no file");
    }
    bytes_ = status.st_size;
  }
  ~DiskInput() override { ::close(descriptor_); }

  std::int64_t bytes() const override { return bytes_; }
  void read(std::int64_t begin, std::span<std::byte> to) const override {
    while (!to.empty()) {
      const ::ssize_t count = ::pread(descriptor_, to.data(), to.size(), begin);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_to("read", path_, errno);
      SHOAL_CHECK(count > 0, Corrupt, path_.string(), ": ends at byte ", begin, ", where ", to.size(),
                  " more should be");
      to = to.subspan(static_cast<std::size_t>(count));
      begin += count;
    }
  }

 private:
  fs::path path_;
  int descriptor_;
  std::int64_t bytes_ = 0;
};

}  // namespace

static constexpr Names<unsigned, 3> kOthersMay = {{{0000, "private"}, {0040, "group"}, {0044, "all"}}};
static std::atomic<unsigned>& others_may() {
  static std::atomic<unsigned> may = 0;
  return may;
}

void set_readers(std::string_view word) {
  const auto may = parse_in(kOthersMay, word);
  SHOAL_CHECK(may, InvalidInput, "SHOAL_FILES is ", in_quotes(word),
              "; it says who may read what is written: private, group or all");
  others_may() = *may;
}

FileModes file_modes() {
  const unsigned may = others_may();  // who may read a folder may enter it
  return {.file = 0600 | may, .folder = 0700 | may | may >> 2};
}

std::error_code make_folders(const fs::path& path) {
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error)) return {};
  if (const std::error_code above = make_folders(path.parent_path())) return above;
  if (::mkdir(path.c_str(), file_modes().folder) == 0) return {};
  const int reason = errno;
  if (reason != EEXIST) return {reason, std::generic_category()};
  return fs::is_directory(path, error) ? std::error_code() : std::make_error_code(std::errc::not_a_directory);
}

std::unique_ptr<OutputFile> DiskFileSystem::create(const fs::path& path) {
  return std::make_unique<DiskOutput>(path);
}

std::unique_ptr<InputFile> DiskFileSystem::open(const fs::path& path) {
  return std::make_unique<DiskInput>(path);
}

void DiskFileSystem::make_folder(const fs::path& path) {
  if (const std::error_code error = make_folders(path)) fail_to("make the folder", path, error.value());
}

bool DiskFileSystem::exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<std::string> DiskFileSystem::list(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, error);
  if (error && error.value() != ENOENT) fail_to("list", folder, error.value());
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error && error.value() != ENOENT) fail_to("list", folder, error.value());
  std::ranges::sort(names);
  return names;
}

void DiskFileSystem::rename(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST && ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0)
    return;
  // Some file systems know no flags; what is there then goes aside first.
  if (errno != EINVAL && errno != ENOSYS) fail_to("rename to", to, errno);
  const fs::path aside = from.string() + ".aside";
  const bool is_there = ::rename(to.c_str(), aside.c_str()) == 0;
  if (::rename(from.c_str(), to.c_str()) != 0) fail_to("rename to", to, errno);
  if (is_there && ::rename(aside.c_str(), from.c_str()) != 0) fail_to("rename to", from, errno);
}

void DiskFileSystem::remove(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_to("remove", path, error.value());
}

void DiskFileSystem::sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_to("sync", folder, errno);
  const int reason = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (reason != 0 && reason != EINVAL) fail_to("sync", folder, reason);  // EINVAL: it has nothing to sync
}

std::string read_text(FileSystem& files, const fs::path& path) {
  const auto file = files.open(path);
  std::string text(static_cast<std::size_t>(file->bytes()), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

static std::string owner_in(int descriptor) {
  char text[32] = {};
  const ::ssize_t count = ::pread(descriptor, text, sizeof(text) - 1, 0);
  return count > 0 ? concat("process ", std::string(text, static_cast<std::size_t>(count)))
                   : "another process";
}

FolderLock::FolderLock(const fs::path& folder) {
  const fs::path path = folder / ".lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, file_modes().file);
  if (descriptor_ < 0) fail_to("write", path, errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    const std::string owner = owner_in(descriptor_);
    ::close(descriptor_);
    if (reason != EWOULDBLOCK) fail_to("lock", path, reason);
    fail(ErrorKind::InvalidInput, folder.string(), " is being written by ", owner,
         ": two runs do not share a folder; wait for it, or choose another");
  }
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, pid.data(), pid.size(), 0) < 0) {
    // The number only makes the other one's message better.
  }
}

FolderLock::~FolderLock() { ::close(descriptor_); }

MappedFile::MappedFile(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  SHOAL_CHECK(descriptor >= 0, InvalidInput, "cannot read ", path.string(), ": ", std::strerror(errno));
  struct ::stat status = {};
  void* at = nullptr;
  std::size_t count = 0;
  int reason = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  if (reason == 0 && status.st_size > 0) {
    count = static_cast<std::size_t>(status.st_size);
    at = ::mmap(nullptr, count, PROT_READ, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) reason = errno;
  }
  ::close(descriptor);
  SHOAL_CHECK(reason == 0, InvalidInput, "cannot read ", path.string(), ": ", std::strerror(reason));
  bytes_ = {static_cast<const std::byte*>(at), count};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace shoal
