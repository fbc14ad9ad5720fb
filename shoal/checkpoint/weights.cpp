// SPDX-License-Identifier: Apache-2.0
#include "shoal/checkpoint/weights.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/checkpoint/folder.h"

namespace shoal::checkpoint {

namespace fs = std::filesystem;

static constexpr const char* kSingle = "model.safetensors";
static constexpr const char* kIndex = "model.safetensors.index.json";

Weights::Weights(FileSystem& files, const fs::path& path) {
  const std::string extension = path.extension().string();
  SHOAL_CHECK(files.exists(path), InvalidInput, path.string(), ": there is no such file or folder");
  SHOAL_CHECK(extension != ".bin" && extension != ".pt" && extension != ".pth", InvalidInput, path.string(),
              ": is a pickle, and reading one runs what stands in it; save it as safetensors "
              "(model.save_pretrained(folder), or safetensors.torch.save_file)");
  if (extension == ".safetensors") {
    add_file(files, path);
  } else if (files.exists(path / kManifestName)) {
    checkpoint_.emplace(files, path);
    const auto& entries = checkpoint_->manifest().tensors;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].group != "model") continue;
      tensors_.push_back({entries[i].name, entries[i].dtype, entries[i].shape});
      entries_.push_back(i);
    }
  } else if (files.exists(path / kSingle)) {
    add_file(files, path / kSingle);
  } else if (files.exists(path / kIndex)) {
    add_indexed(files, path / kIndex);
  } else {
    fail(ErrorKind::InvalidInput, path.string(), ": holds no weights: wanted ", kSingle, ", ", kIndex,
         " or a checkpoint's ", kManifestName);
  }
}

void Weights::add_file(FileSystem& files, const fs::path& path) {
  files_.push_back(files.open(path));
  for (const StoredTensor& tensor : read_header(*files_.back(), path.string()).tensors) {
    tensors_.push_back({tensor.name, tensor.dtype, tensor.shape});
    places_.push_back({files_.size() - 1, tensor.begin});
  }
}

void Weights::add_indexed(FileSystem& files, const fs::path& index) {
  const auto document = nlohmann::json::parse(read_text(files, index), nullptr, false);
  const bool is_index =
      document.is_object() && document.contains("weight_map") && document["weight_map"].is_object();
  SHOAL_CHECK(is_index, Corrupt, index.string(), ": has no weight_map");
  std::map<std::string, std::set<std::string>> names_by_file;
  for (const auto& [name, file] : document["weight_map"].items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    SHOAL_CHECK(!text.empty() && text.front() != '.' && text.find('/') == std::string::npos, Corrupt,
                index.string(), ": the file name ", in_quotes(text), " leads out of the folder");
    names_by_file[text].insert(name);
  }
  for (const auto& [file, names] : names_by_file) {
    const std::size_t first = tensors_.size();
    add_file(files, index.parent_path() / file);
    std::set<std::string> found;
    for (std::size_t i = first; i < tensors_.size(); ++i) found.insert(tensors_[i].name);
    for (const std::string& name : names)
      SHOAL_CHECK(found.contains(name), Corrupt, index.string(), ": tensor ", in_quotes(name), " is not in ",
                  file);
  }
}

void Weights::read(std::size_t index, std::span<std::byte> to) const {
  if (checkpoint_)
    checkpoint_->read(checkpoint_->manifest().tensors[entries_[index]], to);
  else
    files_[places_[index].file]->read(places_[index].begin, to);
}

static std::string type_text(const TensorShape& tensor) {
  return concat(name_of(tensor.dtype), shape_text(tensor.shape));
}

std::vector<std::string> mismatches(std::span<const TensorShape> wanted, std::span<const TensorShape> found,
                                    Types types) {
  std::map<std::string_view, const TensorShape*> by_name;
  for (const TensorShape& tensor : found) by_name.emplace(tensor.name, &tensor);
  std::vector<std::string> lines;
  for (const TensorShape& tensor : wanted) {
    const auto here = by_name.find(tensor.name);
    if (here == by_name.end()) {
      lines.push_back(concat(tensor.name, ": absent, wanted ", type_text(tensor)));
      continue;
    }
    const TensorShape& other = *here->second;
    if (other.shape != tensor.shape || (types == Types::MustBeEqual && other.dtype != tensor.dtype))
      lines.push_back(concat(tensor.name, ": is ", type_text(other), ", wanted ", type_text(tensor)));
    by_name.erase(here);
  }
  for (const TensorShape& tensor : found)
    if (by_name.contains(tensor.name))
      lines.push_back(concat(tensor.name, ": ", type_text(tensor), " is unknown to the model"));
  return lines;
}

void check_fits(std::span<const TensorShape> wanted, std::span<const TensorShape> found, Types types,
                const std::string& what) {
  const auto lines = mismatches(wanted, found, types);
  if (lines.empty()) return;
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  fail(ErrorKind::InvalidInput, what, " does not fit the model:", text);
}

}  // namespace shoal::checkpoint
