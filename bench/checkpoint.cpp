// SPDX-License-Identifier: Apache-2.0
// How long training stands still for a checkpoint of 312 MB, beside one copy of as many bytes and PyTorch's
// distributed checkpoint (async_save) in turns with it.
//
//   bench/checkpoint [--saves=100] [--folder=/tmp] [--python=.venv/bin/python]
//
// Each save begins when the one before is on the disk. Stall: the time until save() returns.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/checkpoint/saver.h"

namespace {

using Clock = std::chrono::steady_clock;
using shoal::checkpoint::TensorBytes;
namespace fs = std::filesystem;

// 26 M parameters and two moments in float: 312 MB, in tensors of a GPT's sizes.
constexpr std::int64_t kMatrix = 512 * 2048;
constexpr int kMatrices = 25;
constexpr int kStates = 3;

struct Tensors {
  std::vector<std::vector<float>> values;
  std::vector<TensorBytes> views;
  std::size_t bytes = 0;
};

Tensors made_tensors() {
  Tensors tensors;
  std::mt19937 random(1);
  for (int state = 0; state < kStates; ++state)
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      auto& values = tensors.values.emplace_back(kMatrix - 10'000 * (matrix % 2));
      for (float& value : values) value = static_cast<float>(random()) * 1e-9f;
    }
  for (std::size_t i = 0; i < tensors.values.size(); ++i) {
    const auto bytes = std::as_bytes(std::span(tensors.values[i]));
    tensors.views.push_back({.group = i < kMatrices ? "model" : "optimizer",
                             .name = "tensor." + std::to_string(i),
                             .dtype = shoal::DType::Float32,
                             .shape = {static_cast<std::int64_t>(tensors.values[i].size())},
                             .bytes = bytes});
    tensors.bytes += bytes.size();
  }
  return tensors;
}

double milliseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double at_share(std::vector<double> sorted, double share) {
  std::ranges::sort(sorted);
  return sorted[static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size()))) - 1];
}

void print(const char* name, const std::vector<double>& ms) {
  std::printf("%-34s median %6.1f  p99 %6.1f  min %6.1f  max %6.1f ms  runs %zu\n", name, at_share(ms, 0.5),
              at_share(ms, 0.99), at_share(ms, 1e-9), at_share(ms, 1), ms.size());
  std::fflush(stdout);
}

std::string option(int argc, char** argv, const std::string& name, const std::string& otherwise) {
  for (int i = 1; i < argc; ++i)
    if (std::string(argv[i]).starts_with("--" + name + "="))
      return std::string(argv[i]).substr(name.size() + 3);
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const int saves = std::stoi(option(argc, argv, "saves", "100"));
  std::string folder =
      option(argc, argv, "folder", fs::temp_directory_path().string()) + "/shoal_bench_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  const Tensors tensors = made_tensors();
  std::printf("%zu tensors, %.0f MB\n", tensors.views.size(), static_cast<double>(tensors.bytes) / 1e6);

  std::vector<double> copies, stalls;
  {
    // Memory that is there before: what any snapshot costs at least, on one thread.
    std::vector<std::byte> target(tensors.bytes, std::byte{1});
    shoal::DiskFileSystem files;
    shoal::checkpoint::Saver saver(files, fs::path(folder) / "checkpoint", {.keep_latest_k = 2});
    saver.reserve(tensors.views);
    for (int save = 0; save < saves; ++save) {
      auto begin = Clock::now();
      std::byte* to = target.data();
      for (const TensorBytes& view : tensors.views) {
        std::memcpy(to, view.bytes.data(), view.bytes.size());
        to += view.bytes.size();
      }
      copies.push_back(milliseconds(begin));
      begin = Clock::now();
      saver.save(save, "{}", tensors.views);
      stalls.push_back(milliseconds(begin));
      saver.wait();
    }
    for (const std::string& failure : saver.take_failures()) std::printf("%s\n", failure.c_str());
  }
  print("one copy on one thread", copies);
  print("shoal: stall of a save", stalls);
  std::printf("p99 stall beyond a copy (its median): %.1f ms\n",
              at_share(stalls, 0.99) - at_share(copies, 0.5));
  fs::remove_all(folder);
  const std::string python = option(argc, argv, "python", ".venv/bin/python");
  const std::string command =
      python + " bench/checkpoint_torch.py --saves=" + std::to_string(saves) + " --folder=" + folder;
  return fs::exists(python) ? std::system(command.c_str()) : 0;
}
