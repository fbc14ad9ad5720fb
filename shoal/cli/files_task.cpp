// SPDX-License-Identifier: Apache-2.0
// dataset.name = "files": is a file larger than the median one, by its path alone? A table of the kind
// recommenders learn from, which every machine has: categories with many values, a few numbers, a yes or no.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/cli/task.h"
#include "shoal/data/hash.h"
#include "shoal/data/sampler.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

namespace fs = std::filesystem;

static constexpr const char* kFolder = "/usr";
static constexpr std::size_t kMostFiles = 200'000;
static constexpr std::int64_t kHeldOutPart = 10;  // one file of so many

namespace {
struct File {
  std::string path;  // below the folder
  std::uintmax_t bytes = 0;
};
}  // namespace

// By path, at most kMostFiles, drawn by their names where there are more. Links are left out.
static std::vector<File> files_below(const fs::path& folder) {
  std::vector<File> files;
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (auto at = fs::recursive_directory_iterator(folder, options, error);
       !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    std::error_code unreadable;
    if (at->is_symlink(unreadable) || !at->is_regular_file(unreadable)) continue;
    const std::uintmax_t bytes = at->file_size(unreadable);
    if (!unreadable) files.push_back({at->path().lexically_relative(folder).string(), bytes});
  }
  if (files.size() > kMostFiles) {
    std::ranges::sort(files, {}, [](const File& file) { return data::hash_bytes(file.path); });
    files.resize(kMostFiles);
  }
  std::ranges::sort(files, {}, &File::path);
  return files;
}

static float share_of(const std::string& name, int (*is_one)(int)) {
  const auto count = std::ranges::count_if(name, [&](unsigned char c) { return is_one(c) != 0; });
  return static_cast<float>(count) / static_cast<float>(name.size());
}

// The six names that place a file: of its folder, the one above, the first two, its kind and how it begins.
static std::array<std::string, kFileCategories> categories_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  const fs::path first = path.begin() == path.end() ? fs::path() : *path.begin();
  const std::string stem = path.stem().string();
  return {path.extension().string(),
          folder.string(),
          folder.filename().string(),
          folder.parent_path().filename().string(),
          first.string(),
          stem.substr(0, 4)};
}

Task make_files_task(const Recipe& recipe) {
  const fs::path folder = recipe.dataset.path.empty() ? fs::path(kFolder) : fs::path(recipe.dataset.path);
  const std::vector<File> files = files_below(folder);
  const std::int64_t batch = recipe.training.local_batch_size;
  const auto& rows = std::get<models::DlrmConfig>(recipe.model.config).table_rows;
  const auto type = recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat;
  const auto seed = static_cast<std::uint64_t>(recipe.training.seed);
  const auto count = static_cast<std::int64_t>(files.size());
  SHOAL_CHECK(count >= 2 * kHeldOutPart * batch, InvalidInput, folder.string(), ": holds ", count,
              " files, wanted ", 2 * kHeldOutPart * batch,
              " at least; name another folder with dataset.path");

  std::map<std::string, std::int64_t> in_folder;
  std::vector<std::uintmax_t> sizes;
  for (const File& file : files) {
    ++in_folder[fs::path(file.path).parent_path().string()];
    sizes.push_back(file.bytes);
  }
  const auto middle = sizes.begin() + count / 2;
  std::ranges::nth_element(sizes, middle);
  const std::uintmax_t median = *middle;

  const at::Tensor numbers = zeros_apart({count, kFileNumbers}, at::kFloat);
  const at::Tensor categories = zeros_apart({count, kFileCategories}, at::kLong);
  const at::Tensor targets = zeros_apart({count}, at::kFloat);
  auto* number = numbers.mutable_data_ptr<float>();
  auto* category = categories.mutable_data_ptr<std::int64_t>();
  auto* target = targets.mutable_data_ptr<float>();
  std::uint64_t key = data::hash_bytes(folder.string());
  for (const File& file : files) {
    const fs::path path = file.path;
    const std::string name = path.filename().string();
    const auto depth = static_cast<float>(std::distance(path.begin(), path.end()));
    const auto siblings = static_cast<float>(in_folder[path.parent_path().string()]);
    const auto names = categories_of(path);
    for (const float value :
         {depth / 10, std::log1p(siblings) / 5, static_cast<float>(name.size()) / 20,
          share_of(name, &std::isdigit), share_of(name, &std::isupper), share_of(name, &std::ispunct)})
      *number++ = value;
    for (std::size_t i = 0; i < names.size(); ++i)
      *category++ = static_cast<std::int64_t>(data::mix(data::hash_bytes(names[i])) %
                                              static_cast<std::uint64_t>(rows[i]));
    *target++ = file.bytes > median ? 1.0F : 0.0F;
    key = data::hash_bytes(file.path, key ^ file.bytes);
  }

  const at::Tensor order =
      apart(at::randperm(count, at::detail::createCPUGenerator(data::mix(seed)), at::kLong));
  const std::int64_t num_held_out = count / kHeldOutPart / batch;
  const at::Tensor held_out = order.narrow(0, 0, num_held_out * batch);
  const at::Tensor trained = order.narrow(0, num_held_out * batch, count - num_held_out * batch);
  const data::Order epochs = {.seed = seed, .num_samples = trained.numel()};
  const auto batch_of = [=](const at::Tensor& chosen) -> Batch {
    return {{"inputs", numbers.index_select(0, chosen).to(type)},
            {"categories", categories.index_select(0, chosen)},
            {"targets", targets.index_select(0, chosen).to(type)}};
  };

  Task task;
  task.description =
      concat(folder.string(), ": ", observe::with_commas(epochs.num_samples), " files to train on, ",
             observe::with_commas(held_out.numel()), " held out; which are larger than ", median, " bytes?");
  task.unit = "files";
  task.units_per_sample = 1;
  task.num_samples = epochs.num_samples;
  task.dataset_key = key;
  task.batch = [=](const Share& share) {
    const auto samples = data::samples_of(epochs, share.begin(), share.count());
    return batch_of(trained.index_select(0, at::tensor(samples, at::kLong)));
  };
  task.held_out.num_batches = num_held_out;
  task.held_out.num_targets = [=](std::int64_t) { return batch; };
  task.held_out.batch = [=](std::int64_t index) {
    return batch_of(held_out.narrow(0, index * batch, batch));
  };
  const double positives = targets.index_select(0, trained).to(at::kDouble).sum().item<double>();
  task.target_counts =
      at::tensor({static_cast<double>(epochs.num_samples) - positives, positives}, at::kDouble);
  return task;
}

}  // namespace shoal::cli
