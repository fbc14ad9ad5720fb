// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/file_memory.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "shoal/aten/memory.h"
#include "shoal/base/error.h"
#include "shoal/base/free_ranges.h"
#include "shoal/base/text.h"

namespace shoal::runtime {

namespace fs = std::filesystem;

static constexpr std::int64_t kPage = 4096;
static constexpr std::int64_t kGrowth = std::int64_t{64} << 20;  // of the file, at least

static constexpr const char* kRemedy = ". Remedy: --offload.folder, a folder on a disk";

static void check_folder(const fs::path& folder) {
  std::error_code error;
  SHOAL_CHECK(fs::is_directory(folder, error), InvalidInput, "offload.folder ", folder.string(),
              fs::exists(folder, error) ? " is no folder" : " does not exist", kRemedy);
  struct statfs system;
  SHOAL_CHECK(statfs(folder.c_str(), &system) == 0, Infeasible, "offload.folder ", folder.string(), ": ",
              std::strerror(errno));
  SHOAL_CHECK(system.f_type != TMPFS_MAGIC && system.f_type != RAMFS_MAGIC, InvalidInput, "offload.folder ",
              folder.string(), " is in main memory (tmpfs): nothing would leave it", kRemedy);
}

// Without a name.
static int open_in(const fs::path& folder) {
  int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {  // not every system can
    std::string name = (folder / "shoal-offload-XXXXXX").string();
    file = mkostemp(name.data(), O_CLOEXEC);
    if (file >= 0) unlink(name.c_str());
  }
  SHOAL_CHECK(file >= 0, Infeasible, "offload.folder ", folder.string(),
              ": no file can be made in it: ", std::strerror(errno), kRemedy);
  return file;
}

class FileMemory::File {
 public:
  explicit File(const fs::path& folder) : folder_(folder) {
    check_folder(folder);
    file_ = open_in(folder);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    for (const Part& part : parts_) munmap(part.data, static_cast<std::size_t>(part.bytes));
    close(file_);
  }

  std::byte* take(std::int64_t bytes) {
    const std::int64_t wanted = pages(bytes);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0;; ++i) {
      if (i == parts_.size()) grow(wanted);
      const auto begin = parts_[i].free.take(wanted);
      if (!begin) continue;
      live_ += wanted;
      return parts_[i].data + *begin;
    }
  }
  void give(const std::byte* data, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    Part& part = *part_of(data);
    part.free.give(data - part.data, pages(bytes));
    live_ -= pages(bytes);
  }
  bool has(const void* data) {
    const std::lock_guard lock(mutex_);
    return part_of(static_cast<const std::byte*>(data)) != parts_.end();
  }
  std::int64_t live_bytes() {
    const std::lock_guard lock(mutex_);
    return live_;
  }
  std::int64_t file_bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Part {
    std::byte* data;
    std::int64_t bytes;
    FreeRanges free;
  };

  static std::int64_t pages(std::int64_t bytes) {
    return (std::max<std::int64_t>(bytes, 1) + kPage - 1) / kPage * kPage;
  }
  std::vector<Part>::iterator part_of(const std::byte* data) {
    return std::ranges::find_if(
        parts_, [&](const Part& part) { return data >= part.data && data < part.data + part.bytes; });
  }
  void grow(std::int64_t wanted) {
    const std::int64_t bytes = std::max(wanted, kGrowth);
    std::error_code unknown;
    const auto space = fs::space(folder_, unknown);
    const bool is_room = unknown || space.available >= static_cast<std::uintmax_t>(bytes);
    if (const int error = is_room ? posix_fallocate(file_, bytes_, bytes) : ENOSPC; error != 0) {
      SHOAL_CHECK(ftruncate(file_, bytes_) == 0, Infeasible, "offload: ", std::strerror(errno));
      fail(ErrorKind::Infeasible, "offload.folder ", folder_.string(), ": ", human_bytes(bytes),
           " more than the ", human_bytes(bytes_), " that are there are wanted, and ",
           human_bytes(static_cast<std::int64_t>(space.available)), " are free: ", std::strerror(error),
           ". Remedy: --offload.folder, a folder on a disk with more room, or offload less");
    }
    void* const data =
        mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file_, bytes_);
    SHOAL_CHECK(data != MAP_FAILED, Infeasible, "offload: ", human_bytes(bytes),
                " of a file cannot be mapped: ", std::strerror(errno));
    bytes_ += bytes;
    parts_.push_back({static_cast<std::byte*>(data), bytes, {}});
    parts_.back().free.give(0, bytes);
  }

  const fs::path folder_;
  int file_ = -1;
  std::mutex mutex_;  // guards all below
  std::int64_t bytes_ = 0, live_ = 0;
  std::vector<Part> parts_;
};

FileMemory::FileMemory(const fs::path& folder) : file_(std::make_shared<File>(folder)) {}

at::Tensor FileMemory::empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  const auto bytes =
      static_cast<std::int64_t>(at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype)));
  std::byte* const data = file_->take(bytes);
  return at::from_blob(
      data, sizes, strides, [file = file_, data, bytes](void*) { file->give(data, bytes); },
      at::TensorOptions(at::kCPU).dtype(dtype));
}

namespace {
// Of a storage that lies here.
struct Lease {
  std::function<void()> end;
};
}  // namespace

void FileMemory::take_in(const at::Tensor& tensor) {
  const void* const from = aten::address_of(tensor);
  if (from == nullptr || !aten::has_memory(tensor) || !tensor.is_cpu() || file_->has(from)) return;
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  const std::size_t bytes = storage->nbytes();
  std::byte* const data = file_->take(static_cast<std::int64_t>(bytes));
  std::memcpy(data, storage->data(), bytes);
  auto* const lease =
      new Lease{[file = file_, data, bytes] { file->give(data, static_cast<std::int64_t>(bytes)); }};
  const auto end = [](void* context) {
    auto* const ended = static_cast<Lease*>(context);
    ended->end();
    delete ended;
  };
  storage->set_data_ptr_noswap(at::DataPtr(data, lease, end, at::kCPU));
}

std::int64_t FileMemory::live_bytes() const { return file_->live_bytes(); }
std::int64_t FileMemory::file_bytes() const { return file_->file_bytes(); }

}  // namespace shoal::runtime
