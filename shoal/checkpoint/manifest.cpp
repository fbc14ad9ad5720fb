// SPDX-License-Identifier: Apache-2.0
#include "shoal/checkpoint/manifest.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "shoal/base/crc32c.h"
#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::checkpoint {

using nlohmann::json;

static constexpr std::string_view kFormat = "shoal-checkpoint";
static constexpr std::int64_t kVersion = 1;

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t total = 1;
  for (const std::int64_t size : shape) {
    if (size < 0) return -1;
    if (size > 0 && total > std::numeric_limits<std::int64_t>::max() / 16 / size) return -1;
    total *= size;
  }
  return total;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::int64_t num_chunks(std::int64_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

static std::string first_line(std::string_view rest) {
  return "{\"crc32c\":\"" + hex(crc32c(rest)) + "\",\n";
}

std::string to_text(const Manifest& manifest) {
  std::string rest =
      json{{"format", kFormat}, {"step", manifest.step}, {"version", kVersion}}.dump().substr(1);
  rest.back() = ',';
  rest += "\n\"state\":" + json::parse(manifest.state).dump() + ",\n\"tensors\":[";
  const char* separator = "\n";
  for (const Entry& entry : manifest.tensors) {
    json pieces = json::array();
    for (const Piece& piece : entry.pieces)
      pieces.push_back(
          {{"file", piece.file}, {"begin", piece.begin}, {"offset", piece.offset}, {"shape", piece.shape}});
    rest += separator + json{{"group", entry.group},
                             {"name", entry.name},
                             {"dtype", name_of(entry.dtype)},
                             {"shape", entry.shape},
                             {"pieces", std::move(pieces)}}
                            .dump();
    separator = ",\n";
  }
  rest += "],\n\"files\":[";
  separator = "\n";
  for (const StoredFile& file : manifest.files) {
    json chunks = json::array();
    for (const std::uint32_t chunk : file.chunks) chunks.push_back(hex(chunk));
    rest +=
        separator + json{{"name", file.name}, {"bytes", file.bytes}, {"crc32c", std::move(chunks)}}.dump();
    separator = ",\n";
  }
  rest += "]}\n";
  return first_line(rest) + rest;
}

namespace {

// Reads fields and says where one is not as it should be.
class Fields {
 public:
  Fields(const json& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object_.is_object()) wrong("is no object");
  }
  [[noreturn]] void wrong(const std::string& what) const { fail(ErrorKind::Corrupt, place_, ": ", what); }

  const json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) wrong(concat("has no ", key));
    return *found;
  }
  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string()) wrong(concat(key, " is no string"));
    return value.get<std::string>();
  }
  std::int64_t count(const char* key) const { return number(at(key), key); }
  std::vector<std::int64_t> counts(const char* key) const {
    std::vector<std::int64_t> numbers;
    for (const json& value : list(key)) numbers.push_back(number(value, key));
    return numbers;
  }
  const json& list(const char* key) const {
    const json& value = at(key);
    if (!value.is_array()) wrong(concat(key, " is no list"));
    return value;
  }
  const std::string& place() const { return place_; }

 private:
  std::int64_t number(const json& value, const char* key) const {
    if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<std::int64_t>::max())
      wrong(concat(key, " is no count"));
    return value.get<std::int64_t>();
  }
  const json& object_;
  std::string place_;
};

}  // namespace

// A plain name: nothing that leads to another folder or hides.
static void check_file_name(const Fields& fields, const std::string& name) {
  if (name.empty() || name.front() == '.' ||
      name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
    fields.wrong("the file name " + in_quotes(name) + " leads out of the checkpoint's folder");
}

static StoredFile file_from(const json& object, const std::string& place) {
  const Fields fields(object, place + ": files");
  StoredFile file = {.name = fields.text("name"), .bytes = fields.count("bytes"), .chunks = {}};
  check_file_name(fields, file.name);
  for (const json& chunk : fields.list("crc32c")) {
    const std::string digits = chunk.is_string() ? chunk.get<std::string>() : "";
    if (digits.size() != 8 || digits.find_first_not_of("0123456789abcdef") != std::string::npos)
      fields.wrong(in_quotes(file.name) + " has a checksum that is none");
    file.chunks.push_back(static_cast<std::uint32_t>(std::stoul(digits, nullptr, 16)));
  }
  if (num_chunks(file.bytes) != static_cast<std::int64_t>(file.chunks.size()))
    fields.wrong(
        concat(in_quotes(file.name), " has ", file.bytes, " bytes but ", file.chunks.size(), " checksums"));
  return file;
}

static Piece piece_from(const Fields& of_entry, const json& object, const Entry& entry,
                        const std::map<std::string, std::int64_t>& file_bytes) {
  const Fields fields(object, of_entry.place() + ": a piece");
  Piece piece = {.file = fields.text("file"),
                 .begin = fields.count("begin"),
                 .offset = fields.counts("offset"),
                 .shape = fields.counts("shape")};
  const auto file = file_bytes.find(piece.file);
  if (file == file_bytes.end()) fields.wrong("its file " + in_quotes(piece.file) + " is not among the files");
  if (piece.offset.size() != entry.shape.size() || piece.shape.size() != entry.shape.size())
    fields.wrong("it has another number of dims than the tensor");
  for (std::size_t dim = 0; dim < entry.shape.size(); ++dim)
    if (piece.shape[dim] > entry.shape[dim] || piece.offset[dim] > entry.shape[dim] - piece.shape[dim])
      fields.wrong("it reaches out of the tensor");
  const std::int64_t bytes = elements_of(piece.shape) * bytes_of(entry.dtype);
  if (bytes > file->second || piece.begin > file->second - bytes) fields.wrong("it reaches out of its file");
  return piece;
}

// Pieces that do not overlap and have as many elements as the tensor make up all of it.
static void check_whole(const Fields& fields, const Entry& entry) {
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < entry.pieces.size(); ++i) {
    const Piece& a = entry.pieces[i];
    elements += elements_of(a.shape);
    for (std::size_t j = 0; j < i; ++j) {
      const Piece& b = entry.pieces[j];
      bool apart = false;
      for (std::size_t dim = 0; dim < entry.shape.size(); ++dim)
        apart = apart || a.offset[dim] + a.shape[dim] <= b.offset[dim] ||
                b.offset[dim] + b.shape[dim] <= a.offset[dim];
      if (!apart) fields.wrong("two of its pieces overlap");
    }
  }
  if (elements != elements_of(entry.shape)) fields.wrong("its pieces do not make up the whole tensor");
}

static Entry entry_from(const json& object, const std::string& place,
                        const std::map<std::string, std::int64_t>& file_bytes) {
  const Fields unnamed(object, place + ": tensors");
  Entry entry = {
      .group = unnamed.text("group"), .name = unnamed.text("name"), .dtype = {}, .shape = {}, .pieces = {}};
  const Fields fields(object, concat(place, ": tensor ", in_quotes(entry.name)));
  const auto dtype = parse_dtype(fields.text("dtype"));
  if (!dtype) fields.wrong("there is no dtype " + in_quotes(fields.text("dtype")));
  entry.dtype = *dtype;
  entry.shape = fields.counts("shape");
  if (elements_of(entry.shape) < 0) fields.wrong("its shape has too many elements");
  for (const json& piece : fields.list("pieces"))
    entry.pieces.push_back(piece_from(fields, piece, entry, file_bytes));
  check_whole(fields, entry);
  return entry;
}

Manifest from_text(std::string_view text, std::string_view where) {
  const std::string place(where);
  const std::size_t end = text.find('\n');
  SHOAL_CHECK(end != std::string_view::npos && text.starts_with("{\"crc32c\":\""), Corrupt, place,
              ": is no manifest of a Shoal checkpoint");
  const std::string_view rest = text.substr(end + 1);
  SHOAL_CHECK(text.substr(0, end + 1) == first_line(rest), Corrupt, place,
              ": its checksum is not that of its text: it was damaged, or changed by hand");
  const json document = json::parse(text, nullptr, false);
  SHOAL_CHECK(!document.is_discarded(), Corrupt, place, ": does not read as JSON");
  const Fields fields(document, place);
  if (fields.text("format") != kFormat)
    fields.wrong("is of another format, " + in_quotes(fields.text("format")));
  if (fields.count("version") != kVersion)
    fields.wrong(concat("is of version ", fields.count("version"), "; this Shoal reads version ", kVersion));
  if (!fields.at("state").is_object()) fields.wrong("state is no object");
  Manifest manifest = {
      .step = fields.count("step"), .state = fields.at("state").dump(), .tensors = {}, .files = {}};
  std::map<std::string, std::int64_t> file_bytes;
  for (const json& file : fields.list("files")) {
    manifest.files.push_back(file_from(file, place));
    const StoredFile& added = manifest.files.back();
    if (!file_bytes.emplace(added.name, added.bytes).second)
      fields.wrong("the file " + in_quotes(added.name) + " stands there twice");
  }
  std::set<std::pair<std::string, std::string>> names;
  for (const json& entry : fields.list("tensors")) {
    manifest.tensors.push_back(entry_from(entry, place, file_bytes));
    const Entry& added = manifest.tensors.back();
    if (!names.emplace(added.group, added.name).second)
      fields.wrong("the tensor " + in_quotes(added.name) + " stands there twice");
  }
  return manifest;
}

}  // namespace shoal::checkpoint
