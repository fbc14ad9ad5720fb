// SPDX-License-Identifier: Apache-2.0
// Checkpoints on a disk that crashes, loses, flips and runs full.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "shoal/base/error_test.h"
#include "shoal/checkpoint/folder.h"
#include "shoal/checkpoint/reader.h"
#include "shoal/checkpoint/saver.h"
#include "tests/fault/faulty_file_system.h"

using namespace shoal;
using namespace shoal::checkpoint;
using fault::FaultyFileSystem;

static const std::filesystem::path kFolder = "/run/checkpoint";

namespace {

// A model whose every value says which step it is of.
class Model {
 public:
  explicit Model(std::size_t elements = 300'000) : weight_(elements), bias_(7) {}

  std::vector<TensorBytes> at_step(std::int64_t step) {
    std::ranges::fill(weight_, static_cast<float>(step));
    std::ranges::fill(bias_, static_cast<double>(step) + 0.5);
    return {{"model",
             "fc.weight",
             DType::Float32,
             {static_cast<std::int64_t>(weight_.size())},
             std::as_bytes(std::span(weight_))},
            {"model", "fc.empty", DType::Float32, {0, 3}, {}},
            {"optimizer", "fc.bias.exp_avg", DType::Float64, {7}, std::as_bytes(std::span(bias_))}};
  }

 private:
  std::vector<float> weight_;
  std::vector<double> bias_;
};

}  // namespace

// That every tensor of a checkpoint is the one of its step.
static void check_content(const Checkpoint& checkpoint) {
  Model model;
  const auto wanted = model.at_step(checkpoint.manifest().step);
  const auto& entries = checkpoint.manifest().tensors;
  REQUIRE(entries.size() == wanted.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    CHECK(entries[i].name == wanted[i].name);
    std::vector<std::byte> bytes(wanted[i].bytes.size());
    checkpoint.read(entries[i], bytes);
    CHECK(std::ranges::equal(bytes, wanted[i].bytes));
  }
}

TEST_CASE("a machine that crashes while it saves has the newest whole checkpoint, at each of 400 moments") {
  const auto save_all = [](FaultyFileSystem& files) {
    std::int64_t acknowledged = 0;
    Model model;
    Saver saver(files, kFolder, {.keep_latest_k = 2});
    for (const std::int64_t step : {10, 20, 30, 40, 30}) {  // the last one goes back and replaces
      saver.save(step, "{}", model.at_step(step));
      saver.wait();
      if (!saver.take_failures().empty()) break;
      acknowledged = step;
    }
    return acknowledged;
  };
  FaultyFileSystem undisturbed;
  undisturbed.make_folder("/run");
  const std::int64_t before = undisturbed.operations();
  CHECK(save_all(undisturbed) == 30);
  const std::int64_t after = undisturbed.operations();
  REQUIRE(after - before > 60);
  std::int64_t newest_was_in_flight = 0;
  for (std::uint64_t trial = 0; trial < 400; ++trial) {
    CAPTURE(trial);
    FaultyFileSystem files(trial);
    files.make_folder("/run");
    files.sync_folder("/");
    files.crash_at(before + 1 +
                   static_cast<std::int64_t>(files.random(static_cast<std::uint64_t>(after - before))));
    const std::int64_t acknowledged = save_all(files);
    files.restart();
    const Newest newest = newest_whole(files, kFolder);
    REQUIRE(newest.checkpoint.has_value() >= (acknowledged > 0));
    if (!newest.checkpoint) continue;
    const std::int64_t found = newest.checkpoint->manifest().step;
    CHECK(found >= acknowledged);
    newest_was_in_flight += found > acknowledged;
    check_content(*newest.checkpoint);
    // Whatever was left behind is gone after the next save.
    Model model;
    Saver saver(files, kFolder, {.keep_latest_k = 2});
    saver.save(50, "{}", model.at_step(50));
    saver.wait();
    CHECK(saver.take_failures().empty());
    CHECK(newest_whole(files, kFolder).checkpoint->manifest().step == 50);
    CHECK(std::ranges::none_of(files.list(kFolder), is_leftover));
    CHECK(files.list(kFolder).size() <= 2);
  }
  CHECK(newest_was_in_flight > 0);  // the crash after the rename is among them
}

namespace {

// Ways in which a stored file changes. Each says whether the bytes are others than before.
struct Damage {
  const char* name;
  bool (*apply)(FaultyFileSystem&, std::vector<std::byte>&);
};

}  // namespace

static constexpr Damage kDamages[] = {
    {"a bit flips",
     [](FaultyFileSystem& files, std::vector<std::byte>& bytes) {
       bytes[files.random(bytes.size())] ^= static_cast<std::byte>(1u << files.random(8));
       return true;
     }},
    {"a byte changes",
     [](FaultyFileSystem& files, std::vector<std::byte>& bytes) {
       bytes[files.random(bytes.size())] ^= static_cast<std::byte>(1 + files.random(255));
       return true;
     }},
    {"the end is cut off",
     [](FaultyFileSystem& files, std::vector<std::byte>& bytes) {
       bytes.resize(files.random(bytes.size()));
       return true;
     }},
    {"something is appended",
     [](FaultyFileSystem& files, std::vector<std::byte>& bytes) {
       bytes.resize(bytes.size() + 1 + files.random(5000));
       return true;
     }},
    {"a range is zeroed",
     [](FaultyFileSystem& files, std::vector<std::byte>& bytes) {
       const auto before = bytes;
       const auto begin = files.random(bytes.size());
       const auto count = 1 + files.random(bytes.size() - begin);
       std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin), count, std::byte{0});
       return bytes != before;
     }},
    {"two places change their contents",
     [](FaultyFileSystem& files, std::vector<std::byte>& bytes) {
       const auto before = bytes;
       const auto half = bytes.size() / 2;
       const auto count = 1 + files.random(half);
       std::swap_ranges(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count),
                        bytes.begin() + static_cast<std::ptrdiff_t>(half));
       return bytes != before;
     }},
};

TEST_CASE("each of 1,000 random corruptions is found, named, and the checkpoint before is taken") {
  FaultyFileSystem files(1);
  {
    Model model(30'000);
    Saver saver(files, kFolder);
    for (const std::int64_t step : {1, 2}) saver.save(step, R"({"seed":5})", model.at_step(step));
  }
  const auto folder = kFolder / name_of_step(2);
  const auto names = files.list(folder);
  REQUIRE(names.size() == 3);
  int applied = 0;
  while (applied < 1000) {
    const auto path = folder / names[files.random(names.size())];
    const Damage& damage = kDamages[files.random(std::size(kDamages))];
    CAPTURE(path.string());
    CAPTURE(damage.name);
    auto& bytes = files.bytes_of(path);
    const auto before = bytes;
    if (!damage.apply(files, bytes)) {
      bytes = before;
      continue;
    }
    ++applied;
    const std::string error = error_of([&] { Checkpoint(files, folder).verify(); });
    CHECK(error.find(path.string()) != std::string::npos);
    const Newest newest = newest_whole(files, kFolder);
    REQUIRE(newest.broken.size() == 1);
    CHECK(newest.checkpoint->manifest().step == 1);
    bytes = before;
  }
  CHECK_NOTHROW(Checkpoint(files, folder).verify());
}

TEST_CASE("a bit that flips anywhere in the manifest is found") {
  FaultyFileSystem files;
  {
    Model model(8);
    Saver(files, kFolder).save(1, R"({"seed":5})", model.at_step(1));
  }
  auto& bytes = files.bytes_of(kFolder / name_of_step(1) / kManifestName);
  for (std::size_t at = 0; at < bytes.size(); ++at)
    for (unsigned bit = 0; bit < 8; ++bit) {
      bytes[at] ^= static_cast<std::byte>(1u << bit);
      CHECK_THROWS_AS(Checkpoint(files, kFolder / name_of_step(1)), Error);
      bytes[at] ^= static_cast<std::byte>(1u << bit);
    }
}

TEST_CASE("a file of an older step in a checkpoint, or none, is found") {
  FaultyFileSystem files;
  {
    Model model(1000);
    Saver saver(files, kFolder);
    for (const std::int64_t step : {1, 2}) saver.save(step, "{}", model.at_step(step));
  }
  const auto at = [](std::int64_t step) { return kFolder / name_of_step(step) / "optimizer-0.safetensors"; };
  files.bytes_of(at(2)) = files.bytes_of(at(1));
  CHECK(error_of([&] { checkpoint_of_step(files, kFolder, 2); }) ==
        "/run/checkpoint/step_00000002/optimizer-0.safetensors: bytes 0 to 168 are not those that were "
        "written, where "
        "tensor \"fc.bias.exp_avg\" lies; the checkpoint of step 1 is whole");
  files.remove(at(2));
  CHECK(
      error_of([&] { checkpoint_of_step(files, kFolder, 2); }) ==
      "/run/checkpoint/step_00000002/optimizer-0.safetensors: is missing; the checkpoint of step 1 is whole");
}

TEST_CASE(
    "a disk that is full while a checkpoint is saved keeps the one before, and the next save works again") {
  FaultyFileSystem files;
  Model model;
  Saver saver(files, kFolder, {.keep_latest_k = 1});
  saver.save(1, "{}", model.at_step(1));
  saver.wait();
  for (const std::int64_t room : {0, 1000, 1'100'000, 1'200'300, 1'200'600}) {
    CAPTURE(room);
    files.fill_up(room);
    saver.save(2, "{}", model.at_step(2));
    saver.wait();
    const auto failures = saver.take_failures();
    REQUIRE(failures.size() == 1);
    CHECK(failures[0].starts_with(
        "step 2 was not saved: cannot write /run/checkpoint/.step_00000002-partial-"));
    CHECK(failures[0].ends_with(": No space left on device; the checkpoints before are as they were"));
    CHECK(saver.last_step() == 1);
    check_content(newest_whole(files, kFolder).checkpoint.value());
    CHECK(files.list(kFolder).size() == 1);  // what the attempt took is free again
  }
  files.fill_up(1 << 30);
  saver.save(3, "{}", model.at_step(3));
  saver.wait();
  CHECK(saver.last_step() == 3);
  CHECK(files.list(kFolder) == std::vector<std::string>{"step_00000003"});
}

TEST_CASE("what is saved is the moment of the call, whatever is written to the tensors afterwards") {
  FaultyFileSystem files;
  Model model;
  Saver saver(files, kFolder, {.keep_latest_k = 0});
  for (std::int64_t step = 1; step <= 20; ++step) {
    saver.save(step, "{}", model.at_step(step));
    static_cast<void>(model.at_step(-1));  // while the saver writes
  }
  saver.wait();
  for (std::int64_t step = 1; step <= 20; ++step)
    check_content(Checkpoint(files, kFolder / name_of_step(step)));
}
