// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/file_memory.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "shoal/base/error.h"
#include "shoal/runtime/allocator.h"

namespace file_memory_test {

using namespace shoal;
using runtime::FileMemory;

static const std::filesystem::path kHere = std::filesystem::current_path();

TEST_CASE("a tensor of a file is no tensor allocator's memory, and its room is used again") {
  runtime::install_allocator();
  FileMemory files(kHere);
  const auto before = runtime::memory_counts().live_bytes;
  at::Tensor tensor = files.empty_strided({3, 1000}, {1, 3}, at::kFloat);
  tensor.fill_(2);
  CHECK(runtime::memory_counts().live_bytes - before < 1000);
  CHECK(tensor.strides() == at::IntArrayRef({1, 3}));
  CHECK(tensor.sum().item<double>() == 6000);
  CHECK(files.live_bytes() == 3 * 4096);
  const void* const was = tensor.data_ptr();
  tensor.reset();
  CHECK(files.live_bytes() == 0);
  CHECK(files.empty_strided({5}, {1}, at::kDouble).data_ptr() == was);
}

TEST_CASE("a storage that is taken in keeps its values, its views, and its place") {
  FileMemory files(kHere);
  const at::Tensor tensor = at::arange(2000, at::kFloat).view({20, 100});
  const at::Tensor view = tensor.t();
  files.take_in(tensor);
  CHECK(files.live_bytes() == 8192);
  CHECK(view.data_ptr() == tensor.data_ptr());
  CHECK(at::equal(tensor.flatten(), at::arange(2000, at::kFloat)));
  const void* const was = tensor.data_ptr();
  files.take_in(view);  // it is here
  CHECK(tensor.data_ptr() == was);
  tensor.fill_(1);
  CHECK(view.sum().item<double>() == 2000);
}

TEST_CASE("what lies in a file outlives who made it") {
  at::Tensor tensor;
  {
    FileMemory files(kHere);
    tensor = files.empty_strided({100000}, {1}, at::kFloat);
  }
  tensor.fill_(3);
  CHECK(tensor.sum().item<double>() == 300000);
}

TEST_CASE("more than a growth of the file is one range") {
  FileMemory files(kHere);
  const std::int64_t elements = (std::int64_t{80} << 20) / 4;
  const at::Tensor large = files.empty_strided({elements}, {1}, at::kFloat);
  large[0] = 1;
  large[elements - 1] = 2;
  CHECK(files.file_bytes() == std::int64_t{80} << 20);
}

static std::string message_for(const std::filesystem::path& folder) {
  try {
    const FileMemory files(folder);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::InvalidInput);
    return error.what();
  }
  return "";
}

TEST_CASE("a folder that is missing, none, or in main memory is refused by name") {
  CHECK(message_for("/nowhere/at/all").find("/nowhere/at/all does not exist. Remedy: --offload.folder") !=
        std::string::npos);
  const auto file = kHere / "file_memory_test.txt";
  std::ofstream(file) << "x";
  CHECK(message_for(file).find("is no folder") != std::string::npos);
  std::filesystem::remove(file);
  if (std::filesystem::is_directory("/dev/shm"))
    CHECK(message_for("/dev/shm").find("is in main memory (tmpfs)") != std::string::npos);
}

TEST_CASE("more than the disk has is refused with what is free") {
  FileMemory files(kHere);
  const auto wanted = static_cast<std::int64_t>(std::filesystem::space(kHere).capacity) * 2;
  try {
    files.empty_strided({wanted}, {1}, at::kByte);
    FAIL("there is no such room");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Infeasible);
    CHECK(std::string(error.what()).find(" are free: ") != std::string::npos);
  }
  CHECK(files.file_bytes() == 0);
}

}  // namespace file_memory_test
