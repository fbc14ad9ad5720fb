// SPDX-License-Identifier: Apache-2.0
// Formats and decisions of checkpoints. What a failing disk does to them is in tests/fault.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "shoal/base/crc32c.h"
#include "shoal/base/error_test.h"
#include "shoal/checkpoint/folder.h"
#include "shoal/checkpoint/manifest.h"
#include "shoal/checkpoint/reader.h"
#include "shoal/checkpoint/safetensors.h"
#include "shoal/checkpoint/saver.h"
#include "shoal/checkpoint/weights.h"

using namespace shoal;
using namespace shoal::checkpoint;
namespace fs = std::filesystem;

namespace {

// A folder of the test's own, gone with it.
class Folder {
 public:
  Folder() : path(fs::temp_directory_path() / concat("shoal_checkpoint_test_", ::getpid())) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  void write(const std::string& name, std::string_view text) {
    DiskFileSystem().create(path / name)->write(std::as_bytes(std::span(text)));
  }
  fs::path path;
};

}  // namespace

static Manifest some_manifest() {
  return {
      .step = 100,
      .state = R"({"seed":1})",
      .tensors = {{.group = "model",
                   .name = "fc.weight",
                   .dtype = DType::Float32,
                   .shape = {4, 6},
                   .pieces = {{"a.safetensors", 96, {0, 0}, {4, 3}}, {"b.safetensors", 96, {0, 3}, {4, 3}}}}},
      .files = {{"a.safetensors", 144, {0xdeadbeef}}, {"b.safetensors", 144, {1}}}};
}

// The text with one word replaced and a checksum that fits: what somebody could have written on purpose.
static std::string forged(const Manifest& manifest, const std::string& word, const std::string& by) {
  std::string text = to_text(manifest);
  text = text.substr(text.find('\n') + 1);
  const auto at = text.find(word);
  REQUIRE(at != std::string::npos);
  text.replace(at, word.size(), by);
  return "{\"crc32c\":\"" + hex(crc32c(text)) + "\",\n" + text;
}

TEST_CASE("a manifest reads back as it was") {
  CHECK(from_text(to_text(some_manifest()), "m") == some_manifest());
  CHECK(from_text(to_text({}), "m") == Manifest{});
}

TEST_CASE("a manifest with a valid checksum and a wrong content says what is wrong") {
  const Manifest manifest = some_manifest();
  const auto says = [&](const std::string& word, const std::string& by) {
    const std::string text = forged(manifest, word, by);
    return error_of([&] { from_text(text, "m"); });
  };
  CHECK(says(R"("name":"b.safetensors")", R"("name":"../b")") ==
        "m: files: the file name \"../b\" leads out of the checkpoint's folder");
  CHECK(says(R"("name":"b.safetensors")", R"("name":"/etc/passwd")") ==
        "m: files: the file name \"/etc/passwd\" leads out of the checkpoint's folder");
  CHECK(says(R"("name":"b.safetensors")", R"("name":"c.safetensors")") ==
        "m: tensor \"fc.weight\": a piece: its file \"b.safetensors\" is not among the files");
  CHECK(says(R"("name":"b.safetensors")", R"("name":"a.safetensors")") ==
        "m: the file \"a.safetensors\" stands there twice");
  CHECK(says(R"("offset":[0,3])", R"("offset":[0,4])") ==
        "m: tensor \"fc.weight\": a piece: it reaches out of the tensor");
  CHECK(says(R"("offset":[0,3])", R"("offset":[0,2])") ==
        "m: tensor \"fc.weight\": two of its pieces overlap");
  CHECK(says(R"("offset":[0,3])", R"("offset":[-1,3])") ==
        "m: tensor \"fc.weight\": a piece: offset is no count");
  CHECK(says(R"("shape":[4,6]})", R"("shape":[4,7]})") ==
        "m: tensor \"fc.weight\": its pieces do not make up the whole tensor");
  CHECK(says(R"("begin":96)", R"("begin":97)") ==
        "m: tensor \"fc.weight\": a piece: it reaches out of its file");
  CHECK(says(R"("bytes":144)", R"("bytes":1440000000)") ==
        "m: files: \"a.safetensors\" has 1440000000 bytes but 1 checksums");
  CHECK(says(R"("version":1)", R"("version":2)") == "m: is of version 2; this Shoal reads version 1");
  CHECK(says(R"("f32")", R"("f33")") == "m: tensor \"fc.weight\": there is no dtype \"f33\"");
  CHECK(says(R"("step":100)", R"("stop":100)") == "m: has no step");
  CHECK(error_of([] { from_text("{}", "m"); }) == "m: is no manifest of a Shoal checkpoint");
}

TEST_CASE("names of checkpoints read back, and nothing else is one") {
  CHECK(name_of_step(100) == "step_00000100");
  CHECK(step_of("step_00000100") == 100);
  CHECK(step_of(name_of_step(123456789012)) == 123456789012);
  for (const char* name :
       {"step_100", "step_0000010x", ".step_00000100-partial-1", "step_-0000100", "", "step_"})
    CHECK_FALSE(step_of(name).has_value());
}

TEST_CASE("the oldest checkpoints go first, and 0 keeps all") {
  const std::vector<std::int64_t> steps = {10, 20, 30};
  CHECK(superseded(steps, 2) == std::vector<std::int64_t>{10});
  CHECK(superseded(steps, 3).empty());
  CHECK(superseded(steps, 0).empty());
}

TEST_CASE("a tensor is put together from blocks of any dim") {
  Folder folder;
  std::string a(6 * 4, '\0'), b = a, c(12 * 4, '\0');
  for (int i = 0; i < 12; ++i) {
    const float value = static_cast<float>(i);
    const int row = i / 3 % 2;
    std::string& part = row == 0 ? a : b;  // dim 1 is cut in two
    std::memcpy(part.data() + 4 * (i / 6 * 3 + i % 3), &value, 4);
    std::memcpy(c.data() + 4 * i, &value, 4);
  }
  folder.write("a", a);
  folder.write("b", b);
  Manifest manifest = {
      .step = 1, .state = "{}", .tensors = {}, .files = {{"a", 24, {crc32c(a)}}, {"b", 24, {crc32c(b)}}}};
  manifest.tensors.push_back({"model",
                              "x",
                              DType::Float32,
                              {2, 2, 3},
                              {{"a", 0, {0, 0, 0}, {2, 1, 3}}, {"b", 0, {0, 1, 0}, {2, 1, 3}}}});
  folder.write("manifest.json", to_text(manifest));
  DiskFileSystem files;
  const Checkpoint checkpoint(files, folder.path);
  std::string read(48, 'x');
  checkpoint.read(checkpoint.manifest().tensors[0], std::as_writable_bytes(std::span(read)));
  CHECK(read == c);
}

TEST_CASE("a safetensors file is as the format says, and reads back") {
  SafetensorsHeader header = {.tensors = {{.name = "b", .dtype = DType::BFloat16, .shape = {2, 3}},
                                          {.name = "a", .dtype = DType::Int64, .shape = {}}},
                              .metadata = {{"format", "pt"}}};
  const std::string text = make_header(header);
  CHECK(text.substr(8, text.find_last_not_of(' ') - 7) ==
        R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
        R"("a":{"dtype":"I64","shape":[],"data_offsets":[12,20]}})");
  CHECK(text.size() % 8 == 0);
  Folder folder;
  folder.write("x.safetensors", text + std::string(20, '\1'));
  CHECK(read_header(*DiskFileSystem().open(folder.path / "x.safetensors"), "x") == header);
}

TEST_CASE("a safetensors file that is cut off, overlaps, leaves gaps or is none says so") {
  Folder folder;
  const auto says = [&](const std::string& json, std::size_t data_bytes) {
    std::uint64_t length = json.size();
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    folder.write("x", text + json + std::string(data_bytes, '\0'));
    return error_of([&] { read_header(*DiskFileSystem().open(folder.path / "x"), "x"); });
  };
  CHECK(says(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8).empty());
  CHECK(says(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7) ==
        "x: has 69 bytes where its header says 70: it is cut off");
  CHECK(says(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8) ==
        "x: tensor \"a\": shape [3] does not fit its 8 bytes");
  CHECK(
      says(R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", 4).find("shape") !=
      std::string::npos);
  CHECK(says(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12) ==
        "x: tensor \"a\" overlaps the one before it, or leaves a gap");
  CHECK(says(R"({"a":{"dtype":"F8","shape":[2],"data_offsets":[0,8]}})", 8) ==
        "x: tensor \"a\": there is no dtype \"F8\" here");
  CHECK(says("[1]", 0) == "x: is no safetensors file: its header does not read as JSON");
  folder.write("x", "GIF89a, no safetensors");
  CHECK(error_of([&] {
          read_header(*DiskFileSystem().open(folder.path / "x"), "x");
        }).starts_with("x: is cut off, or no safetensors file: a header of"));
}

TEST_CASE("weights are found in a file, in a folder with an index, and in a checkpoint") {
  Folder folder;
  DiskFileSystem files;
  const auto write = [&](const std::string& name, const std::string& tensor, float value) {
    SafetensorsHeader header = {.tensors = {{.name = tensor, .dtype = DType::Float32, .shape = {1}}},
                                .metadata = {}};
    folder.write(name, make_header(header) + std::string(reinterpret_cast<const char*>(&value), 4));
  };
  const auto value_of = [](const Weights& weights, std::size_t index) {
    float value = 0;
    weights.read(index, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  };
  write("one.safetensors", "w", 1);
  CHECK(value_of(Weights(files, folder.path / "one.safetensors"), 0) == 1);
  fs::create_directories(folder.path / "sharded");
  write("sharded/part-1.safetensors", "v", 2);
  write("sharded/part-2.safetensors", "w", 3);
  folder.write("sharded/model.safetensors.index.json",
               R"({"weight_map":{"v":"part-1.safetensors","w":"part-2.safetensors"}})");
  const Weights sharded(files, folder.path / "sharded");
  REQUIRE(sharded.tensors().size() == 2);
  CHECK(value_of(sharded, 1) == 3);
  folder.write("sharded/model.safetensors.index.json", R"({"weight_map":{"v":"../one.safetensors"}})");
  CHECK(error_of([&] { Weights(files, folder.path / "sharded"); }).ends_with("leads out of the folder"));
  const float value = 4;
  Saver(files, folder.path / "run")
      .save(
          7, "{}",
          std::vector<TensorBytes>{{"model", "w", DType::Float32, {1}, std::as_bytes(std::span(&value, 1))}});
  CHECK(value_of(Weights(files, folder.path / "run" / "step_00000007"), 0) == 4);
  CHECK(value_of(Weights(files, folder.path / "run" / "step_00000007" / "model-0.safetensors"), 0) == 4);
  CHECK(error_of([&] { Weights(files, folder.path); }).find("holds no weights") != std::string::npos);
  folder.write("pytorch_model.bin", "pickle");
  CHECK(error_of([&] { Weights(files, folder.path / "pytorch_model.bin"); }).find("is a pickle") !=
        std::string::npos);
}

TEST_CASE("all that does not fit is listed, not the first alone") {
  const std::vector<TensorShape> wanted = {
      {"a", DType::Float32, {2}}, {"b", DType::Float32, {2}}, {"c", DType::Float32, {}}};
  const std::vector<TensorShape> found = {
      {"b", DType::Float32, {3}}, {"c", DType::Float64, {}}, {"d", DType::Int64, {1, 1}}};
  CHECK(error_of([&] { check_fits(wanted, found, Types::MustBeEqual, "w.safetensors"); }) ==
        "w.safetensors does not fit the model:\n"
        "  a: absent, wanted f32[2]\n"
        "  b: is f32[3], wanted f32[2]\n"
        "  c: is f64[], wanted f32[]\n"
        "  d: i64[1, 1] is unknown to the model");
  CHECK(mismatches(wanted, found, Types::MayDiffer).size() == 3);
  CHECK_NOTHROW(check_fits(wanted, wanted, Types::MustBeEqual, "w"));
}
