// SPDX-License-Identifier: Apache-2.0
// Memory that is a file's: what is offloaded lies in it, and kernels read and write it where it lies. The
// system keeps in main memory as much of it as there is room for, writes the rest to the disk, and reads it
// back when it is wanted.
//
//   parameters, optimizer's state      from step to step
//   gradients, activations             from where they are made to where they are read last
//
// The file has no name, so that nothing is left of it, however the process ends; its room on the disk is
// taken before it is used, as a full disk would end the process later. A process that is forked shares it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>

namespace shoal::runtime {

class FileMemory {
 public:
  // Throws InvalidInput where the folder is missing, no folder, or itself in main memory (tmpfs); Infeasible
  // where no file can be made in it.
  explicit FileMemory(const std::filesystem::path& folder);

  // Any thread, all of these. Not initialised. Throws Infeasible where the disk is full.
  at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);
  // The tensor's storage lies here from now on, that of its views too, with what is in it. Of main memory; what
  // lies here already, or has no memory, stays as it is.
  void take_in(const at::Tensor& tensor);

  std::int64_t live_bytes() const;  // handed out and not yet given back
  std::int64_t file_bytes() const;  // what it has of the disk

 private:
  class File;
  std::shared_ptr<File> file_;  // held by what was handed out too
};

// Where files go that nobody has said a folder for: unlike /tmp it is on a disk.
inline constexpr const char* kOffloadFolder = "/var/tmp";

}  // namespace shoal::runtime
