// SPDX-License-Identifier: Apache-2.0
// Megabytes of text a second that one core makes batches of: Criteo's lines and MultiSlot's, and beside them
// a bare loop that only finds the ends of lines and fields.
//
//   bench/samples [--lines=400000] [--rounds=7] [--folder=/tmp]
//
// Files are written first, and read from memory then. Medians; time is this thread's own.
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/crc32c.h"
#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/data/criteo.h"
#include "shoal/data/hash.h"
#include "shoal/data/multi_slot.h"
#include "shoal/data/sample_reader.h"

namespace {

using shoal::concat;
using shoal::data::mix;

constexpr std::size_t kBatch = 4096;

double processor_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Lengths and holes as in Criteo's files: about 240 bytes a line.
std::string criteo_line(std::uint64_t line) {
  std::string text(1, mix(line) % 4 == 0 ? '1' : '0');
  for (std::uint64_t i = 0; i < 13; ++i) {
    text += '\t';
    const std::uint64_t drawn = mix(line * 64 + i);
    constexpr std::uint64_t kMost[] = {10, 100, 1000, 100'000};
    if (drawn % 5 != 0) text += std::to_string((drawn >> 8) % kMost[(drawn >> 4) % 4]);
  }
  for (std::uint64_t i = 0; i < 26; ++i) {
    text += '\t';
    const std::uint64_t drawn = mix(line * 64 + 32 + i);
    if (drawn % 9 != 0) text += shoal::hex(static_cast<std::uint32_t>(drawn >> 32));
  }
  return text;
}

// 26 slots of one to four ids of up to nine digits.
std::string multi_slot_line(std::uint64_t line) {
  std::string text = mix(line) % 4 == 0 ? "1 1" : "1 0";
  for (std::uint64_t i = 0; i < 26; ++i) {
    const std::uint64_t drawn = mix(line * 64 + i), count = 1 + drawn % 4;
    text += concat(" ", count);
    for (std::uint64_t j = 0; j < count; ++j) text += concat(" ", mix(drawn + j) % 1'000'000'000);
  }
  return text;
}

template <class Line>
std::string written(const std::filesystem::path& path, std::uint64_t lines, const Line& line) {
  std::string text;
  for (std::uint64_t i = 0; i < lines; ++i) text += line(i) + "\n";
  shoal::DiskFileSystem().create(path)->write(std::as_bytes(std::span(text)));
  return text;
}

void print(std::string_view name, double megabytes, std::vector<double> seconds) {
  std::ranges::sort(seconds);
  std::printf("%-24s %6.0f MB/s   (%.0f to %.0f, %zu rounds)\n", std::string(name).c_str(),
              megabytes / seconds[seconds.size() / 2], megabytes / seconds.back(),
              megabytes / seconds.front(), seconds.size());
}

void bench_reader(std::string_view name, const std::filesystem::path& path, double megabytes, int rounds,
                  const shoal::data::LineParser& parser) {
  shoal::DiskFileSystem files;
  shoal::data::SampleReader reader(files, {path}, parser);
  shoal::data::SlotBatch batch;
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const double begin = processor_seconds();
    reader.begin(round);
    do reader.read(batch, kBatch);
    while (batch.size() > 0);
    seconds.push_back(processor_seconds() - begin);
  }
  print(name, megabytes, seconds);
}

void bench_bare(std::string_view text, int rounds) {
  std::vector<double> seconds;
  std::size_t fields = 0;
  for (int round = 0; round < rounds; ++round) {
    const double begin = processor_seconds();
    for (const char c : text) fields += c == '\t' || c == '\n' ? 1 : 0;
    seconds.push_back(processor_seconds() - begin);
  }
  print(concat("counting ", fields / static_cast<std::size_t>(rounds), " fields"),
        static_cast<double>(text.size()) / 1e6, seconds);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t lines = 400'000;
  int rounds = 7;
  std::filesystem::path folder = std::filesystem::temp_directory_path();
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--lines="))
      lines = std::stoull(argument.substr(8));
    else if (argument.starts_with("--rounds="))
      rounds = std::stoi(argument.substr(9));
    else if (argument.starts_with("--folder="))
      folder = argument.substr(9);
    else {
      std::fputs("usage: samples [--lines=400000] [--rounds=7] [--folder=/tmp]\n", stderr);
      return 2;
    }
  }
  const std::string name = concat("shoal_bench_samples_", ::getpid());
  const auto tsv = folder / (name + ".tsv"), zipped = folder / (name + ".gz"),
             slots = folder / (name + ".txt");
  {
    const std::string text = written(tsv, lines, criteo_line);
    const double megabytes = static_cast<double>(text.size()) / 1e6;
    const gzFile to = gzopen(zipped.c_str(), "wb1");
    gzwrite(to, text.data(), static_cast<unsigned>(text.size()));
    gzclose(to);
    std::printf("%zu lines of %zu bytes, batches of %zu\n", lines, text.size() / lines, kBatch);
    bench_bare(text, rounds);
    const shoal::data::CriteoParser criteo;
    bench_reader("Criteo", tsv, megabytes, rounds, criteo);
    bench_reader("Criteo, gzip", zipped, megabytes, rounds, criteo);
  }
  std::vector<shoal::data::Slot> schema = {{.name = "label", .kind = shoal::data::SlotKind::Label}};
  for (int i = 0; i < 26; ++i) schema.push_back({.name = concat("C", i + 1)});
  const std::size_t bytes = written(slots, lines, multi_slot_line).size();
  bench_reader("MultiSlot", slots, static_cast<double>(bytes) / 1e6, rounds,
               shoal::data::MultiSlotParser(schema));
  for (const auto& path : {tsv, zipped, slots}) std::filesystem::remove(path);
  return 0;
}
