// SPDX-License-Identifier: Apache-2.0
#include "shoal/base/file_system.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/base/error_test.h"

using namespace shoal;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() : path(fs::temp_directory_path() / concat("shoal_file_system_test_", ::getpid())) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path path;
};

}  // namespace

static void write(FileSystem& files, const fs::path& path, std::string_view text) {
  const auto file = files.create(path);
  file->write(std::as_bytes(std::span(text)));
  file->sync();
}

TEST_CASE("the disk keeps what is written, and lists and removes it") {
  Folder folder;
  DiskFileSystem files;
  files.make_folder(folder.path / "a" / "b");
  write(files, folder.path / "a" / "b" / "x", "hello");
  write(files, folder.path / "a" / "c", "");
  files.sync_folder(folder.path / "a");
  CHECK(read_text(files, folder.path / "a" / "b" / "x") == "hello");
  CHECK(files.list(folder.path / "a") == std::vector<std::string>{"b", "c"});
  CHECK(files.list(folder.path / "none").empty());
  files.remove(folder.path / "a");
  CHECK_FALSE(files.exists(folder.path / "a"));
  CHECK_NOTHROW(files.remove(folder.path / "a"));
}

TEST_CASE("what is written is for this user alone unless more is said") {
  const Folder folder;
  DiskFileSystem disk;
  const auto modes = [&](const std::string& name) {
    disk.make_folder(folder.path / name / "in it");
    disk.create(folder.path / name / "in it" / "file");
    std::string text;
    for (const char* path : {".", "in it", "in it/file"}) {
      struct stat status = {};
      REQUIRE(stat((folder.path / name / path).c_str(), &status) == 0);
      text += concat(std::oct, status.st_mode & 0777, ' ');
    }
    return text;
  };
  const auto mask = umask(022);
  CHECK(modes("a") == "700 700 600 ");
  set_readers("group");
  CHECK(modes("b") == "750 750 640 ");
  set_readers("all");
  CHECK(modes("c") == "755 755 644 ");
  set_readers("private");
  CHECK(modes("d") == "700 700 600 ");
  umask(mask);
  CHECK_THROWS_WITH(set_readers("world"),
                    "SHOAL_FILES is \"world\"; it says who may read what is written: private, group or all");
}

TEST_CASE("a rename onto a folder that is there lets the two change places") {
  Folder folder;
  DiskFileSystem files;
  for (const char* name : {"new", "old"}) {
    files.make_folder(folder.path / name);
    write(files, folder.path / name / "who", name);
  }
  files.rename(folder.path / "new", folder.path / "old");
  CHECK(read_text(files, folder.path / "old" / "who") == "new");
  CHECK(read_text(files, folder.path / "new" / "who") == "old");
  files.rename(folder.path / "new", folder.path / "elsewhere");
  CHECK(files.list(folder.path) == std::vector<std::string>{"elsewhere", "old"});
}

TEST_CASE("what the system refuses is named with its reason") {
  Folder folder;
  DiskFileSystem files;
  const std::string path = (folder.path / "none" / "x").string();
  CHECK(error_of([&] { files.create(path); }) == "cannot write " + path + ": No such file or directory");
  CHECK(error_of([&] { files.open(path); }) == "cannot read " + path + ": No such file or directory");
  CHECK(error_of([&] { files.open(folder.path); }) ==
        "cannot read " + folder.path.string() + ": it is no file");
  CHECK(error_of([&] { MappedFile mapped(path); }) == "cannot read " + path + ": No such file or directory");
  write(files, folder.path / "x", "abc");
  std::byte four[4];
  CHECK(error_of([&] { files.open(folder.path / "x")->read(0, four); }).find("ends at byte 3") !=
        std::string::npos);
}

TEST_CASE("a folder is locked for one run at a time, which the other one names") {
  Folder folder;
  {
    const FolderLock lock(folder.path);
    CHECK(error_of([&] { FolderLock second(folder.path); }) ==
          concat(folder.path.string(), " is being written by process ", ::getpid(),
                 ": two runs do not share a folder; wait for it, or choose another"));
  }
  CHECK_NOTHROW(FolderLock(folder.path));
}

TEST_CASE("a mapped file has the file's bytes, and an empty one none") {
  Folder folder;
  DiskFileSystem files;
  write(files, folder.path / "x", "abc");
  write(files, folder.path / "y", "");
  MappedFile mapped(folder.path / "x");
  REQUIRE(mapped.bytes().size() == 3);
  CHECK(mapped.bytes()[2] == std::byte{'c'});
  mapped = MappedFile(folder.path / "y");
  CHECK(mapped.bytes().empty());
}
