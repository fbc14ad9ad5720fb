// SPDX-License-Identifier: Apache-2.0
// shoal checkpoint inspect | verify | export: what is in a checkpoint, whether it is whole, and its weights
// as a folder that Hugging Face's from_pretrained reads.
#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/checkpoint/folder.h"
#include "shoal/checkpoint/reader.h"
#include "shoal/checkpoint/safetensors.h"
#include "shoal/cli/hugging_face.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/observe/file.h"

namespace shoal::cli {

using checkpoint::Checkpoint;
using checkpoint::Entry;
namespace fs = std::filesystem;

// One checkpoint, or all in a folder; in the folder of a run, those of its folder `checkpoint`.
static std::vector<fs::path> checkpoints_at(FileSystem& files, const fs::path& path) {
  SHOAL_CHECK(files.exists(path), InvalidInput, path.string(), ": there is no such folder");
  if (files.exists(path / checkpoint::kManifestName) || checkpoint::step_of(path.filename().string()))
    return {path};
  for (const fs::path& folder : {path, path / "checkpoint"}) {
    std::vector<fs::path> found;
    for (const std::int64_t step : checkpoint::steps_among(files.list(folder)))
      found.push_back(folder / checkpoint::name_of_step(step));
    if (!found.empty()) return found;
  }
  fail(ErrorKind::InvalidInput, path.string(), ": is no checkpoint and holds none");
}

static std::int64_t bytes_in(const Checkpoint& checkpoint) {
  std::int64_t bytes = 0;
  for (const auto& file : checkpoint.manifest().files) bytes += file.bytes;
  return bytes;
}

int checkpoint_inspect(const std::vector<std::string>& paths) {
  DiskFileSystem files;
  for (const std::string& path : paths)
    for (const fs::path& folder : checkpoints_at(files, path)) {
      const Checkpoint checkpoint(files, folder);
      say(concat(folder.string(), ": step ", checkpoint.manifest().step, ", ",
                 checkpoint.manifest().tensors.size(), " tensors, ", human_bytes(bytes_in(checkpoint))));
      for (const Entry& entry : checkpoint.manifest().tensors)
        say(concat("  ", entry.group, "  ", entry.name, "  ", name_of(entry.dtype),
                   checkpoint::shape_text(entry.shape)));
      say("  state " + checkpoint.manifest().state);
    }
  return 0;
}

int checkpoint_verify(const std::vector<std::string>& paths) {
  DiskFileSystem files;
  bool all_whole = true;
  fs::path newest;
  for (const std::string& path : paths)
    for (const fs::path& folder : checkpoints_at(files, path)) {
      try {
        const Checkpoint checkpoint(files, folder);
        checkpoint.verify();
        say(concat(folder.string(), ": whole, ", human_bytes(bytes_in(checkpoint))));
        newest = folder;
      } catch (const Error& error) {
        say(concat("DAMAGED: ", error.what()));
        all_whole = false;
      }
    }
  if (!all_whole) say(newest.empty() ? "none is whole" : "the newest whole one is " + newest.string());
  return all_whole ? 0 : 1;
}

static std::string safetensors_of(const Checkpoint& checkpoint) {
  checkpoint::SafetensorsHeader header;
  header.metadata.emplace("format", "pt");
  std::vector<const Entry*> entries;
  for (const Entry& entry : checkpoint.manifest().tensors) {
    if (entry.group != "model") continue;
    entries.push_back(&entry);
    header.tensors.push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape});
  }
  std::string bytes = checkpoint::make_header(header);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::size_t begin = bytes.size();
    bytes.resize(begin + static_cast<std::size_t>(header.tensors[i].bytes));
    checkpoint.read(*entries[i], std::as_writable_bytes(std::span(bytes)).subspan(begin));
  }
  return bytes;
}

int checkpoint_export(const std::vector<std::string>& paths) {
  DiskFileSystem files;
  SHOAL_CHECK(paths.size() == 2, InvalidInput,
              "shoal checkpoint export takes a checkpoint and the folder to write");
  const auto found = checkpoints_at(files, paths[0]);
  const Checkpoint checkpoint(files, found.back());
  const fs::path folder = paths[1];
  observe::make_folder(folder);
  observe::write_file(folder / "model.safetensors", safetensors_of(checkpoint));
  say(concat((folder / "model.safetensors").string(), ": the weights of ", found.back().string()));
  if (const auto config = config_json_of(recipe_of(checkpoint))) {
    observe::write_file(folder / "config.json", *config);
    say((folder / "config.json").string() + ": its sizes, as transformers has them");
  }
  return 0;
}

}  // namespace shoal::cli
