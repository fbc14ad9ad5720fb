// SPDX-License-Identifier: Apache-2.0
// The weights of a model from anywhere, by name: a safetensors file, a Hugging Face folder, a Shoal
// checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/base/file_system.h"
#include "shoal/checkpoint/reader.h"
#include "shoal/checkpoint/safetensors.h"

namespace shoal::checkpoint {

// A tensor's name and type, without its bytes.
struct TensorShape {
  std::string name;
  DType dtype = DType::Float32;
  std::vector<std::int64_t> shape;
  friend bool operator==(const TensorShape&, const TensorShape&) = default;
};

class Weights {
 public:
  // `path`: a file NAME.safetensors, a folder with model.safetensors or model.safetensors.index.json, or one
  // checkpoint. Throws InvalidInput naming the path and what it should be, Corrupt for damage. Pickles (.bin,
  // .pt) are refused: to read one is to run it.
  Weights(FileSystem& files, const std::filesystem::path& path);

  const std::vector<TensorShape>& tensors() const { return tensors_; }
  void read(std::size_t index, std::span<std::byte> to) const;  // `to` has the tensor's size

 private:
  void add_file(FileSystem& files, const std::filesystem::path& path);
  void add_indexed(FileSystem& files, const std::filesystem::path& index);

  struct Place {  // in one of the files
    std::size_t file;
    std::int64_t begin;
  };
  std::vector<TensorShape> tensors_;
  std::vector<Place> places_;
  std::vector<std::unique_ptr<InputFile>> files_;
  std::optional<Checkpoint> checkpoint_;  // instead of files
  std::vector<std::size_t> entries_;      // of its manifest, by tensor
};

// What keeps `found` from being loaded where `wanted` is, a line each and all of them: absent, unknown,
// another shape, and where types must be equal, another type.
enum class Types { MustBeEqual, MayDiffer };
std::vector<std::string> mismatches(std::span<const TensorShape> wanted, std::span<const TensorShape> found,
                                    Types types);
// Throws InvalidInput with all of them.
void check_fits(std::span<const TensorShape> wanted, std::span<const TensorShape> found, Types types,
                const std::string& what);

}  // namespace shoal::checkpoint
