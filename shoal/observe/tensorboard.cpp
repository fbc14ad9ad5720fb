// SPDX-License-Identifier: Apache-2.0
// The two messages that are needed of tensorflow/core/util/event.proto, field by field: no protobuf for
// sixteen bytes.
//
//   Event    1: double wall_time   2: int64 step   3: string file_version   5: Summary summary
//   Summary  1: repeated Value     Value  1: string tag   2: float simple_value
#include "shoal/observe/tensorboard.h"

#include <chrono>
#include <cstring>

#include "shoal/base/crc32c.h"
#include "shoal/base/error.h"

namespace shoal::observe {

static constexpr std::string_view kVersion = "brain.Event:2";
enum class WireType : unsigned { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

template <class T>
static void append_fixed(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

static void append_varint(std::string& bytes, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  bytes += static_cast<char>(value);
}

static void append_key(std::string& bytes, unsigned field, WireType type) {
  append_varint(bytes, field << 3 | static_cast<unsigned>(type));
}

static void append_bytes(std::string& bytes, unsigned field, std::string_view value) {
  append_key(bytes, field, WireType::Bytes);
  append_varint(bytes, value.size());
  bytes += value;
}

std::string record_of(std::string_view bytes) {
  std::string record;
  append_fixed(record, static_cast<std::uint64_t>(bytes.size()));
  append_fixed(record, masked_crc32c(crc32c(record)));
  record += bytes;
  append_fixed(record, masked_crc32c(crc32c(bytes)));
  return record;
}

std::string scalar_event(double seconds, std::int64_t step,
                         const std::vector<std::pair<std::string, double>>& scalars) {
  std::string event;
  append_key(event, 1, WireType::Fixed64);
  append_fixed(event, seconds);
  if (scalars.empty()) {
    append_bytes(event, 3, kVersion);
    return event;
  }
  append_key(event, 2, WireType::Varint);
  append_varint(event, static_cast<std::uint64_t>(step));
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    append_bytes(value, 1, tag);
    append_key(value, 2, WireType::Fixed32);
    append_fixed(value, static_cast<float>(number));
    append_bytes(summary, 1, value);
  }
  append_bytes(event, 5, summary);
  return event;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

static std::filesystem::path new_file_in(const std::filesystem::path& folder, double seconds) {
  make_folder(folder);
  return folder / concat("events.out.tfevents.", static_cast<std::int64_t>(seconds), ".shoal");
}

EventFile::EventFile(const std::filesystem::path& folder, double seconds)
    : file_(new_file_in(folder, seconds), LineFile::Begin::Continue) {
  file_.append(record_of(scalar_event(seconds, 0, {})));
}

void EventFile::write(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars,
                      double seconds) {
  if (!scalars.empty()) file_.append(record_of(scalar_event(seconds, step, scalars)));
}

}  // namespace shoal::observe
