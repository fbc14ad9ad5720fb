// SPDX-License-Identifier: Apache-2.0
#include "shoal/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "shoal/base/error.h"
#include "shoal/base/names.h"
#include "shoal/base/text.h"
#include "shoal/checkpoint/manifest.h"

namespace shoal::checkpoint {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

static constexpr Names<DType, 11> kDTypes = {{{DType::Float64, "F64"},
                                              {DType::Float32, "F32"},
                                              {DType::Float16, "F16"},
                                              {DType::BFloat16, "BF16"},
                                              {DType::Int64, "I64"},
                                              {DType::Int32, "I32"},
                                              {DType::Int16, "I16"},
                                              {DType::Int8, "I8"},
                                              {DType::UInt8, "U8"},
                                              {DType::Bool, "BOOL"},
                                              {DType::Complex64, "C64"}}};
static constexpr std::int64_t kLengthBytes = 8;
static constexpr std::int64_t kMostHeaderBytes = 100'000'000;  // the format's own limit

std::string make_header(SafetensorsHeader& header) {
  nlohmann::ordered_json document = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) document["__metadata__"] = header.metadata;
  std::int64_t at = 0;
  for (StoredTensor& tensor : header.tensors) {
    const std::string_view dtype = name_in(kDTypes, tensor.dtype);
    SHOAL_CHECK(dtype != "?", InvalidInput, "safetensors: tensor ", in_quotes(tensor.name), " is ",
                name_of(tensor.dtype), ", which the format does not have");
    SHOAL_CHECK(!document.contains(tensor.name), InvalidInput, "safetensors: the tensor ",
                in_quotes(tensor.name), " is there twice");
    tensor.begin = at;
    tensor.bytes = elements_of(tensor.shape) * bytes_of(tensor.dtype);
    at += tensor.bytes;
    document[tensor.name] = {{"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, at}}};
  }
  std::string text = document.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that tensors are aligned
  const auto length = static_cast<std::uint64_t>(text.size());
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  for (StoredTensor& tensor : header.tensors)
    tensor.begin += kLengthBytes + static_cast<std::int64_t>(length);
  return bytes + text;
}

static StoredTensor tensor_from(const std::string& name, const json& object, const std::string& place) {
  const auto require = [&](bool holds, const std::string& what) {
    SHOAL_CHECK(holds, Corrupt, place, ": tensor ", in_quotes(name), ": ", what);
  };
  require(object.is_object() && object.contains("dtype") && object.contains("shape") &&
              object.contains("data_offsets") && object["dtype"].is_string() && object["shape"].is_array() &&
              object["data_offsets"].is_array() && object["data_offsets"].size() == 2,
          "is not described by dtype, shape and data_offsets");
  const std::string word = object["dtype"].get<std::string>();
  const auto dtype = parse_in(kDTypes, word);
  require(dtype.has_value(), "there is no dtype " + in_quotes(word) + " here");
  StoredTensor tensor = {.name = name, .dtype = *dtype, .shape = {}};
  for (const json& size : object["shape"]) {
    require(size.is_number_unsigned() && size < (std::int64_t{1} << 62), "its shape is none");
    tensor.shape.push_back(size.get<std::int64_t>());
  }
  for (const json& offset : object["data_offsets"])
    require(offset.is_number_unsigned() && offset < (std::int64_t{1} << 62), "its offsets are none");
  tensor.begin = object["data_offsets"][0].get<std::int64_t>();
  tensor.bytes = object["data_offsets"][1].get<std::int64_t>() - tensor.begin;
  const std::int64_t elements = elements_of(tensor.shape);
  require(elements >= 0 && elements * bytes_of(tensor.dtype) == tensor.bytes,
          concat("shape ", shape_text(tensor.shape), " does not fit its ", tensor.bytes, " bytes"));
  return tensor;
}

SafetensorsHeader read_header(const InputFile& file, std::string_view where) {
  const std::string place(where);
  std::uint64_t length = 0;
  SHOAL_CHECK(file.bytes() >= kLengthBytes, Corrupt, place, ": is no safetensors file: it has ", file.bytes(),
              " bytes");
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  const auto room = static_cast<std::uint64_t>(std::min(kMostHeaderBytes, file.bytes() - kLengthBytes));
  SHOAL_CHECK(length <= room, Corrupt, place, ": is cut off, or no safetensors file: a header of ", length,
              " bytes does not fit in it");
  std::string text(length, '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const json document = json::parse(text, nullptr, false);
  SHOAL_CHECK(document.is_object(), Corrupt, place,
              ": is no safetensors file: its header does not read as JSON");
  SafetensorsHeader header;
  for (const auto& [name, object] : document.items()) {
    if (name != "__metadata__") {
      header.tensors.push_back(tensor_from(name, object, place));
      continue;
    }
    SHOAL_CHECK(object.is_object(), Corrupt, place, ": its metadata is no object");
    for (const auto& [key, value] : object.items())
      if (value.is_string()) header.metadata.emplace(key, value.get<std::string>());
  }
  std::ranges::stable_sort(header.tensors, {}, [](const StoredTensor& tensor) { return tensor.begin; });
  std::int64_t end = 0;
  for (StoredTensor& tensor : header.tensors) {
    SHOAL_CHECK(tensor.begin == end, Corrupt, place, ": tensor ", in_quotes(tensor.name),
                " overlaps the one before it, or leaves a gap");
    end += tensor.bytes;
    tensor.begin += kLengthBytes + static_cast<std::int64_t>(length);
  }
  const std::int64_t wanted = kLengthBytes + static_cast<std::int64_t>(length) + end;
  SHOAL_CHECK(wanted == file.bytes(), Corrupt, place, ": has ", file.bytes(), " bytes where its header says ",
              wanted, file.bytes() < wanted ? ": it is cut off" : "");
  return header;
}

}  // namespace shoal::checkpoint
