// SPDX-License-Identifier: Apache-2.0
// The seam to the disk: what must survive a crash is written through it, and tests put a failing disk behind
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace shoal {

// Who may read what is written: "private" (this user alone, as it is from the start), "group" or "all", which is
// what SHOAL_FILES says in the environment; the umask may take more away. Any thread. Throws InvalidInput for
// another word.
void set_readers(std::string_view word);
// Permission bits, as of chmod, that files and folders are made with.
struct FileModes {
  unsigned file;    // 0600 where readers are "private", 0640 "group", 0644 "all"
  unsigned folder;  // 0700, 0750, 0755
};
FileModes file_modes();  // as set_readers() has set them, "private" at first; any thread
// Makes the folders of a path that are not there yet. Returns why not, and throws nothing.
std::error_code make_folders(const std::filesystem::path& path);

// A new file. Bytes survive a crash once sync() has returned, and the file's name once its folder was synced.
// Both throw Infeasible that names path and reason, on a full disk say.
class OutputFile {
 public:
  virtual ~OutputFile() = default;                           // closes
  virtual void write(std::span<const std::byte> bytes) = 0;  // all of them, behind what was written before
  virtual void sync() = 0;                                   // until they are on the disk
};

// A file that is there. Several threads may read one.
class InputFile {
 public:
  virtual ~InputFile() = default;
  virtual std::int64_t bytes() const = 0;  // its length when it was opened
  // Fills all of `to` from byte `begin` on; throws Corrupt where the file ends before, Infeasible where the
  // system refuses.
  virtual void read(std::int64_t begin, std::span<std::byte> to) const = 0;
};

// Every method throws Infeasible that names path and reason when the system refuses; `open` InvalidInput when
// there is no such file. One object may be used by several threads.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<OutputFile> create(
      const std::filesystem::path& path) = 0;  // empties one that is there
  virtual std::unique_ptr<InputFile> open(const std::filesystem::path& path) = 0;  // to be read
  virtual void make_folder(const std::filesystem::path& path) = 0;  // and those above it; may be there
  virtual bool exists(const std::filesystem::path& path) = 0;       // a file or a folder
  virtual std::vector<std::string> list(
      const std::filesystem::path& folder) = 0;  // names, sorted; none if absent
  // At once, or not at all. Where `to` is there already the two change places.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void remove(
      const std::filesystem::path& path) = 0;  // a folder with all that is in it; may be absent
  virtual void sync_folder(
      const std::filesystem::path& folder) = 0;  // names and renames in it survive from here on
};

// The machine's own.
class DiskFileSystem final : public FileSystem {
 public:
  std::unique_ptr<OutputFile> create(const std::filesystem::path& path) override;
  std::unique_ptr<InputFile> open(const std::filesystem::path& path) override;
  void make_folder(const std::filesystem::path& path) override;
  bool exists(const std::filesystem::path& path) override;
  std::vector<std::string> list(const std::filesystem::path& folder) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void remove(const std::filesystem::path& path) override;
  void sync_folder(const std::filesystem::path& folder) override;
};

// All of a file. Throws as FileSystem::open and InputFile::read do.
std::string read_text(FileSystem& files, const std::filesystem::path& path);

// Keeps other processes out of a folder until it is destroyed or the process ends, however it ends.
class FolderLock {
 public:
  // Throws InvalidInput naming the process that holds it, Infeasible where the folder takes no lock.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

// A file's bytes, read when they are touched. They must not change meanwhile.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);  // throws InvalidInput when it cannot be read
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }  // all of it; good as long as this lives

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace shoal
