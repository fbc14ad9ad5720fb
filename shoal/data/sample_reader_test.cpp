// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/sample_reader.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/error_test.h"
#include "shoal/base/temporary_folder_test.h"
#include "shoal/data/criteo.h"
#include "shoal/data/hash.h"
#include "shoal/data/multi_slot.h"

using namespace shoal;
using namespace shoal::data;
namespace fs = std::filesystem;

static std::string gzipped(const std::string& text) {
  z_stream z = {};
  REQUIRE(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string result(deflateBound(&z, text.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(result.data());
  z.avail_out = static_cast<uInt>(result.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  result.resize(z.total_out);
  deflateEnd(&z);
  return result;
}

// A line of Criteo's where only these columns are not empty: I1, C1 and C26.
static std::string criteo_line(const std::string& number, const std::string& first, const std::string& last) {
  return "1\t" + number + std::string(13, '\t') + first + std::string(25, '\t') + last;
}

// Slots: label, id, and so many numbers that lines have many lengths.
static std::vector<Slot> numbered() {
  return {{.name = "label", .kind = SlotKind::Label}, {.name = "id"}, {.name = "rest"}};
}

static std::string numbered_lines(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i) {
    const auto rest = mix(static_cast<std::uint64_t>(i)) % 9;
    text += "1 1 1 " + std::to_string(i) + " " + std::to_string(rest);
    for (std::uint64_t j = 0; j < rest; ++j) text += " " + std::to_string(mix(j) % 100'000);
    text += "\n";
  }
  return text;
}

static std::vector<std::uint64_t> ids_of(const SlotBatch& batch) {
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < batch.size(); ++i)
    ids.push_back(batch.keys[static_cast<std::size_t>(batch.offsets[2 * i])]);
  return ids;
}

static std::vector<std::uint64_t> rest_of(SampleReader& reader) {
  std::vector<std::uint64_t> all;
  SlotBatch batch;
  do {
    reader.read(batch, 7);
    const auto ids = ids_of(batch);
    all.insert(all.end(), ids.begin(), ids.end());
  } while (batch.size() == 7);
  return all;
}

static std::vector<std::uint64_t> sorted(std::vector<std::uint64_t> ids) {
  std::ranges::sort(ids);
  return ids;
}

static std::vector<std::uint64_t> up_to(std::uint64_t count) {
  std::vector<std::uint64_t> ids(count);
  for (std::uint64_t i = 0; i < count; ++i) ids[i] = i;
  return ids;
}

TEST_CASE("a Criteo line is a label, thirteen logarithms and twenty-six keys of their slots") {
  SlotBatch batch;
  const CriteoParser parser;
  REQUIRE(!parser.add(criteo_line("5", "68fd1e64", "0000000a"), batch));
  REQUIRE(!parser.add(criteo_line("-2", "", "FFFFFFFF"), batch));
  REQUIRE(!parser.add(criteo_line("123456", "f", "abcdef01"), batch));
  CHECK(batch.labels == std::vector<float>{1, 1, 1});
  REQUIRE(batch.numbers.size() == 39);
  CHECK(batch.numbers[0] == doctest::Approx(std::log(6)));
  CHECK(batch.numbers[13] == 0);  // negative
  CHECK(batch.numbers[26] == doctest::Approx(std::log(123457)));
  CHECK(batch.numbers[1] == 0);  // missing
  const KeyLayout layout;
  REQUIRE(batch.keys.size() == 78);
  CHECK(batch.keys[0] == 0x68fd1e64);
  CHECK(batch.keys[25] == layout.key(25, 10));
  CHECK(batch.keys[26] == CriteoParser::kMissing);
  CHECK(batch.keys[51] == layout.key(25, 0xffffffff));
  CHECK(batch.keys[52] == 0xf);
  CHECK(batch.keys[77] == layout.key(25, 0xabcdef01));
  CHECK((batch.keys[77] >> 63) == 0);
  CHECK(batch.offsets.empty());
}

TEST_CASE("eight characters are an id only when each is a hexadecimal digit") {
  const CriteoParser parser;
  for (int c = 1; c < 256; ++c)
    for (const std::size_t at : {0, 3, 7}) {
      if (c == '\t') continue;
      std::string id = "12345678";
      id[at] = static_cast<char>(c);
      SlotBatch batch;
      const bool is_digit = c < 128 && std::isxdigit(c) != 0;
      CAPTURE(id);
      CHECK(parser.add(criteo_line("1", id, id), batch).has_value() == !is_digit);
      if (is_digit) CHECK(batch.keys[0] == std::stoull(id, nullptr, 16));
    }
}

TEST_CASE("a malformed Criteo line says which column is wrong, and adds nothing") {
  const auto fault = [](const std::string& line) {
    SlotBatch batch;
    const auto malformed = CriteoParser().add(line, batch);
    REQUIRE(malformed);
    CHECK(batch == SlotBatch());
    return malformed->slot + ": " + malformed->why;
  };
  CHECK(fault("") == "line: has 0 columns, not 40");
  CHECK(fault("1\t2\t3") == "line: has 3 columns, not 40");
  CHECK(fault(criteo_line("5", "", "") + "\t") == "line: has 41 columns, not 40");
  CHECK(fault("2" + criteo_line("5", "", "").substr(1)) == R"(label: "2" is not 0 or 1)");
  CHECK(fault("10" + criteo_line("5", "", "").substr(1)) == R"(label: "10" is not 0 or 1)");
  CHECK(fault(criteo_line("5x", "", "")) == R"(I1: "5x" is not an integer)");
  CHECK(fault(criteo_line("-", "", "")) == R"(I1: "-" is not an integer)");
  CHECK(fault(criteo_line("5", "123456789", "")) ==
        R"(C1: "123456789" is not up to eight hexadecimal digits)");
  CHECK(fault(criteo_line("5", "", "12 4")) == R"(C26: "12 4" is not up to eight hexadecimal digits)");
}

TEST_CASE("a MultiSlot line is what its schema says") {
  const MultiSlotParser parser({{.name = "user"},
                                {.name = "age", .kind = SlotKind::Numbers, .width = 2},
                                {.name = "click", .kind = SlotKind::Label},
                                {.name = "note", .kind = SlotKind::Ignored},
                                {.name = "item"},
                                {.name = "history", .shares = "item"}});
  SlotBatch batch;
  REQUIRE(!parser.add("1 7 2 0.5 -1e2 1 1 2 a -b 3 1 2 3 0", batch));
  REQUIRE(!parser.add("0 2 1 2 1 0 0 1 9007199254740991 2 3 4", batch));
  CHECK(batch.labels == std::vector<float>{1, 0});
  CHECK(batch.numbers == std::vector<float>{0.5f, -100, 1, 2});
  const KeyLayout layout;
  const auto item = [&](std::uint64_t id) { return layout.key(1, id); };
  CHECK(batch.keys ==
        std::vector<std::uint64_t>{7, item(1), item(2), item(3), item(9007199254740991), item(3), item(4)});
  CHECK(batch.offsets == std::vector<std::int64_t>{0, 1, 4, 4, 4, 5, 7});
  CHECK(parser.num_id_slots() == 3);
}

TEST_CASE("a malformed MultiSlot line says which slot is wrong, and adds nothing") {
  const auto fault = [](const std::string& line) {
    SlotBatch batch;
    const auto malformed = MultiSlotParser(numbered()).add(line, batch);
    REQUIRE(malformed);
    CHECK(batch == SlotBatch());
    return malformed->slot + ": " + malformed->why;
  };
  CHECK(fault("") == "label: the line ends before it");
  CHECK(fault("1 1 x 5") == R"(id: "x" is not a number of values)");
  CHECK(fault("1 1 1 -5 0") == R"(id: "-5" is negative; an id is 0 or more)");
  CHECK(fault("1 1 1 5.5 0") == R"(id: "5.5" is not an id)");
  CHECK(fault("1 1 2 5") == "id: the line ends before its 2 values");
  CHECK(fault("1 1 2 500") == "id: has 1 values, not 2");
  CHECK(fault("1 1 99999999999999999 5") == "id: the line ends before its 99999999999999999 values");
  CHECK(fault("1 1 99999999999999999999 5") == R"(id: "99999999999999999999" is not a number of values)");
  CHECK(fault("2 1 0 1 5 0") == "label: has 2 values, not 1");
  CHECK(fault("1 nan 1 5 0") == R"(label: "nan" is not a number)");
  CHECK(fault("1 1 1 5 0 7") == R"(line: "7" comes after the last slot)");
  CHECK(fault("1 1 1 9007199254740992 0") ==
        "id: 9007199254740992 is beyond 53 bits, which slot_bits = 10 leaves to ids");
}

TEST_CASE("with no bits for slots, ids are keys as they are") {
  SlotBatch batch;
  const MultiSlotParser parser(numbered(), {.slot_bits = 0});
  REQUIRE(!parser.add("1 1 1 9223372036854775807 1 9223372036854775807", batch));
  CHECK(batch.keys == std::vector<std::uint64_t>(2, 9223372036854775807u));
  CHECK(parser.add("1 1 1 9223372036854775808 0", batch)->why ==
        "9223372036854775808 is beyond 63 bits, which slot_bits = 0 leaves to ids");
  CHECK(parser.add("1 1 1 18446744073709551616 0", batch)->why == R"("18446744073709551616" is not an id)");
}

TEST_CASE("a schema that fits no line is refused") {
  const auto message = [](std::vector<Slot> slots, int bits) {
    return error_of([&] { MultiSlotParser(std::move(slots), {.slot_bits = bits}); });
  };
  CHECK(message({{.name = "a"}}, 10) == "MultiSlot: one slot is the label, not 0");
  CHECK(message({{.name = "a", .kind = SlotKind::Label}, {.name = "a"}}, 10) ==
        "MultiSlot: two slots have the name a");
  CHECK(message({{.name = "a", .kind = SlotKind::Label}, {.name = "b", .shares = "c"}}, 10) ==
        "MultiSlot: slot b shares the ids of c, which is no slot of ids before it");
  CHECK(message({{.name = "a", .kind = SlotKind::Label}, {.name = "b"}, {.name = "c"}, {.name = "d"}}, 1) ==
        "MultiSlot: 3 slots of ids do not go into slot_bits = 1");
  CHECK(error_of([] { CriteoParser({.slot_bits = 4}); }) ==
        "Criteo's 26 slots with ids of 32 bits want slot_bits from 5 to 30, not 4");
}

TEST_CASE("each line is read once an epoch, however files are cut, zipped and shared out") {
  const TemporaryFolder folder;
  const std::string first = numbered_lines(0, 150), second = numbered_lines(150, 90);
  const std::string without_end = numbered_lines(240, 60);
  const std::vector<fs::path> paths = {
      folder.add("a.txt", first),
      folder.add("b.gz", gzipped(second.substr(0, 1000)) + gzipped(second.substr(1000))),
      folder.add("c.txt", without_end.substr(0, without_end.size() - 1)), folder.add("empty", "")};
  DiskFileSystem files;
  const MultiSlotParser parser(numbered());
  for (const std::int64_t bytes : {1, 2, 13, 64, 1000, 1 << 20})
    for (const int workers : {1, 2, 5}) {
      CAPTURE(bytes);
      CAPTURE(workers);
      SampleReader reader(files, paths, parser, {.seed = 3, .shuffle_bytes = bytes});
      std::vector<std::uint64_t> all;
      for (int worker = 0; worker < workers; ++worker) {
        reader.begin(1, worker, workers);
        const auto ids = rest_of(reader);
        all.insert(all.end(), ids.begin(), ids.end());
      }
      CHECK(sorted(all) == up_to(300));
    }
}

TEST_CASE("lines come in another order each epoch, and in their own when they are not shuffled") {
  const TemporaryFolder folder;
  const std::vector<fs::path> paths = {folder.add("a", numbered_lines(0, 300))};
  DiskFileSystem files;
  const MultiSlotParser parser(numbered());
  SampleReader reader(files, paths, parser, {.shuffle_bytes = 1000});
  const auto order_in = [&](std::int64_t epoch) {
    reader.begin(epoch);
    return rest_of(reader);
  };
  const auto zero = order_in(0), one = order_in(1);
  CHECK(zero != one);
  CHECK(order_in(0) == zero);
  // Neighbours in the file are seldom neighbours in the order, and parts are mixed up too.
  int neighbours = 0;
  for (std::size_t i = 1; i < zero.size(); ++i) neighbours += zero[i] == zero[i - 1] + 1 ? 1 : 0;
  CHECK(neighbours < 30);
  CHECK(zero[0] > 30);
  SampleReader straight(files, paths, parser, {.is_shuffled = false, .shuffle_bytes = 1000});
  CHECK(rest_of(straight) == up_to(300));
}

TEST_CASE("a reader goes on where it was, and other numbers of readers read what is left, each line once") {
  const TemporaryFolder folder;
  const std::vector<fs::path> paths = {folder.add("a", numbered_lines(0, 200)),
                                       folder.add("b", gzipped(numbered_lines(200, 100)))};
  DiskFileSystem files;
  const MultiSlotParser parser(numbered());
  const ReadOptions options = {.seed = 5, .shuffle_bytes = 700};
  std::vector<std::uint64_t> all;
  std::vector<ReadPosition> positions;
  SlotBatch batch;
  for (int worker = 0; worker < 2; ++worker) {
    SampleReader reader(files, paths, parser, options);
    reader.begin(4, worker, 2);
    for (int step = 0; step < 3 + worker; ++step) {
      reader.read(batch, 20);
      const auto ids = ids_of(batch);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    const ReadPosition position = read_position_from_text(to_text(reader.position()));
    CHECK(position == reader.position());
    SampleReader other(files, paths, parser, options);
    other.resume(position);
    CHECK(rest_of(other) == rest_of(reader));
    positions.push_back(position);
  }
  CHECK(all.size() == 140);
  for (const ReadPosition& position : dealt(positions, 3)) {
    SampleReader reader(files, paths, parser, options);
    reader.resume(position);
    const auto ids = rest_of(reader);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  CHECK(sorted(all) == up_to(300));
}

TEST_CASE("a position of other files, or a damaged one, is refused") {
  const TemporaryFolder folder;
  DiskFileSystem files;
  const MultiSlotParser parser(numbered());
  const SampleReader one(files, {folder.add("a", numbered_lines(0, 20))}, parser);
  SampleReader other(files, {folder.add("a", numbered_lines(0, 21))}, parser);
  CHECK(error_of([&] { other.resume(one.position()); }) ==
        "the position is that of a reader of other files, or of another seed or shuffle_bytes");
  for (const char* text : {"", "1", "1 x", "1 2 3", "1 2 3:", "1 2 3:4 ", "1 2,3:4"})
    CHECK_THROWS_AS(read_position_from_text(text), Error);
  CHECK_THROWS_AS(dealt(std::vector{one.position(), other.position()}, 2), Error);
}

TEST_CASE("malformed lines are named by file and line, and skipped up to a limit") {
  const TemporaryFolder folder;
  const std::string text =
      numbered_lines(0, 50) + "1 1 1 -7 0\r\n" + numbered_lines(50, 50) + "\n" + numbered_lines(100, 10);
  DiskFileSystem files;
  const MultiSlotParser parser(numbered());
  for (const auto& path : {folder.add("plain", text), folder.add("zipped.gz", gzipped(text))}) {
    const std::string first = path.string() + R"(:51: slot id: "-7" is negative; an id is 0 or more)";
    const std::string second = path.string() + ":102: slot label: the line ends before it";
    for (const std::int64_t bytes : {100, 1 << 20}) {
      ReadOptions options = {.is_shuffled = false, .shuffle_bytes = bytes, .max_malformed = 2};
      SampleReader reader(files, {path}, parser, options);
      CHECK(rest_of(reader) == up_to(110));
      CHECK(reader.malformed() == 2);
      CHECK(reader.first_malformed() == std::vector{first, second});
      options.max_malformed = 1;
      SampleReader strict(files, {path}, parser, options);
      CHECK(error_of([&] { rest_of(strict); }) ==
            second + "; 1 malformed lines were skipped before it, and max_malformed is 1");
    }
  }
}

TEST_CASE("a gzip file that is damaged or cut short is refused by name") {
  const TemporaryFolder folder;
  DiskFileSystem files;
  const MultiSlotParser parser(numbered());
  const std::string whole = gzipped(numbered_lines(0, 3000));
  const auto message = [&](const std::string& bytes) {
    const fs::path path = folder.add("a.gz", bytes);
    SampleReader reader(files, {path}, parser);
    const std::string text = error_of([&] { rest_of(reader); });
    CHECK(text.starts_with(path.string()));
    return text.substr(path.string().size());
  };
  CHECK(message(whole.substr(0, whole.size() / 2)) == ": the gzip file ends too early, after " +
                                                          std::to_string(whole.size() / 2) +
                                                          " bytes; copy or download it again");
  for (std::size_t at = 20; at < whole.size(); at += whole.size() / 20) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    CHECK(message(damaged).ends_with("download it again"));
  }
}

TEST_CASE("a file without lines is refused before it fills the memory") {
  const TemporaryFolder folder;
  DiskFileSystem files;
  const MultiSlotParser parser(numbered());
  const std::string text(PartReader::kLongestLine * 2, 'x');
  for (const auto& path : {folder.add("a", text), folder.add("a.gz", gzipped(text))}) {
    SampleReader reader(files, {path}, parser, {.shuffle_bytes = 1000});
    CHECK(error_of([&] { rest_of(reader); }) ==
          path.string() + ": has a line of more than 1048576 bytes; is it text, one sample a line?");
  }
  CHECK(error_of([&] { SampleReader(files, {}, parser); }) == "there are no files to read samples from");
}
