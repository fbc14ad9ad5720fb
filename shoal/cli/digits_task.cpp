// SPDX-License-Identifier: Apache-2.0
// dataset.name = "digits": 1,797 handwritten digits of 8x8 pixels, as the package scikit-learn ships them
// (from the UCI repository): a line is 64 numbers from 0 to 16 and the digit.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <zlib.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/cli/task.h"
#include "shoal/data/hash.h"
#include "shoal/data/sampler.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

namespace fs = std::filesystem;

static constexpr std::int64_t kSide = 8;
static constexpr std::int64_t kPixels = kSide * kSide;
static constexpr double kBrightest = 16;
static constexpr double kHeldOutShare = 0.2;
static constexpr const char* kFile = "sklearn/datasets/data/digits.csv.gz";

// Below a Python's library folders: of a virtual environment here, and of the system.
static fs::path find_digits() {
  for (const fs::path root : {".venv/lib", "/usr/local/lib", "/usr/lib"}) {
    std::error_code absent;
    for (const auto& python : fs::directory_iterator(root, absent))
      for (const char* packages : {"site-packages", "dist-packages"})
        if (const fs::path path = python.path() / packages / kFile; fs::exists(path, absent)) return path;
  }
  fail(ErrorKind::InvalidInput,
       "dataset.name \"digits\": scikit-learn, which ships them, is in no Python here; run pip install "
       "scikit-learn, or name the file with dataset.path");
}

// What the file holds, unpacked if it is packed.
static std::string read_packed(const fs::path& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  SHOAL_CHECK(file != nullptr, InvalidInput, path.string(), ": cannot be opened");
  std::string text;
  std::array<char, 1 << 16> part;
  int length = 0;
  while ((length = gzread(file, part.data(), part.size())) > 0)
    text.append(part.data(), static_cast<std::size_t>(length));
  gzclose(file);
  SHOAL_CHECK(length == 0 && !text.empty(), Corrupt, path.string(), ": does not unpack");
  return text;
}

// Rows of 65 numbers, all in one vector.
static std::vector<double> read_table(const fs::path& path) {
  const std::string text = read_packed(path);
  std::vector<double> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    double number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    SHOAL_CHECK(error == std::errc(), Corrupt, path.string(), ": number ", numbers.size() + 1,
                " does not read as one; wanted rows of ", kPixels + 1, " numbers with commas between them");
    numbers.push_back(number);
    for (at = rest; at < end && (*at == ',' || *at == '\r' || *at == '\n');) ++at;
  }
  const auto count = static_cast<std::int64_t>(numbers.size());
  SHOAL_CHECK(count % (kPixels + 1) == 0, Corrupt, path.string(), ": has ", count,
              " numbers, not a multiple of ", kPixels + 1);
  return numbers;
}

Task make_digits_task(const Recipe& recipe) {
  const fs::path path = recipe.dataset.path.empty() ? find_digits() : fs::path(recipe.dataset.path);
  std::vector<double> numbers = read_table(path);
  const at::Tensor table = at::from_blob(
      numbers.data(), {static_cast<std::int64_t>(numbers.size()) / (kPixels + 1), kPixels + 1}, at::kDouble);
  const auto type = recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat;
  const std::int64_t batch = recipe.training.local_batch_size;
  const auto seed = static_cast<std::uint64_t>(recipe.training.seed);
  const std::int64_t rows = table.size(0);
  const at::Tensor order =
      apart(at::randperm(rows, at::detail::createCPUGenerator(data::mix(seed)), at::kLong));
  const at::Tensor images =
      apart(table.narrow(1, 0, kPixels).to(type).div_(kBrightest).view({rows, 1, kSide, kSide}));
  const at::Tensor labels = apart(table.select(1, kPixels).to(at::kLong));
  const auto num_held_out = static_cast<std::int64_t>(kHeldOutShare * static_cast<double>(rows)) / batch;
  SHOAL_CHECK(num_held_out > 0, InvalidInput, "training.local_batch_size: ", batch,
              " is more than the held-out digits of ", path.string(), "; take a smaller one");
  const at::Tensor held_out = order.narrow(0, 0, num_held_out * batch);
  const at::Tensor trained = order.narrow(0, num_held_out * batch, rows - num_held_out * batch);
  const data::Order epochs = {.seed = seed, .num_samples = trained.numel()};
  const auto batch_of = [=](const at::Tensor& chosen) -> Batch {
    return {{"inputs", images.index_select(0, chosen)}, {"targets", labels.index_select(0, chosen)}};
  };

  Task task;
  task.description = concat(path.string(), ": ", observe::with_commas(epochs.num_samples),
                            " digits to train on, ", held_out.numel(), " held out");
  task.unit = "images";
  task.units_per_sample = 1;
  task.num_samples = epochs.num_samples;
  task.dataset_key = data::hash_bytes(
      {static_cast<const char*>(table.const_data_ptr()), static_cast<std::size_t>(table.nbytes())});
  task.batch = [=](const Share& share) {
    const auto samples = data::samples_of(epochs, share.begin(), share.count());
    return batch_of(trained.index_select(0, at::tensor(samples, at::kLong)));
  };
  task.held_out.num_batches = num_held_out;
  task.held_out.num_targets = [=](std::int64_t) { return batch; };
  task.held_out.batch = [=](std::int64_t index) {
    return batch_of(held_out.narrow(0, index * batch, batch));
  };
  task.target_counts = at::bincount(labels.index_select(0, trained), {},
                                    std::get<models::VitConfig>(recipe.model.config).num_classes)
                           .to(at::kDouble);
  return task;
}

}  // namespace shoal::cli
