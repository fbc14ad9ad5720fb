// SPDX-License-Identifier: Apache-2.0
#include "shoal/checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/base/crc32c.h"
#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/checkpoint/folder.h"

namespace shoal::checkpoint {

namespace fs = std::filesystem;

static Manifest read_manifest(FileSystem& files, const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  SHOAL_CHECK(files.exists(path), Corrupt, folder.string(), ": is no whole checkpoint: there is no ",
              kManifestName);
  return from_text(read_text(files, path), path.string());
}

Checkpoint::Checkpoint(FileSystem& files, fs::path folder)
    : files_(files), folder_(std::move(folder)), manifest_(read_manifest(files_, folder_)) {}

const StoredFile& Checkpoint::stored(const std::string& name) const {
  return *std::ranges::find(manifest_.files, name, &StoredFile::name);  // from_text saw that it is there
}

void Checkpoint::check_chunk(const StoredFile& stored, std::int64_t chunk,
                             std::span<const std::byte> bytes) const {
  if (crc32c(bytes) == stored.chunks[static_cast<std::size_t>(chunk)]) return;
  const std::int64_t begin = chunk * kChunkBytes;
  const auto end = begin + static_cast<std::int64_t>(bytes.size());
  std::string inside;
  for (const Entry& entry : manifest_.tensors)
    for (const Piece& piece : entry.pieces)
      if (inside.empty() && piece.file == stored.name && piece.begin < end &&
          piece.begin + elements_of(piece.shape) * bytes_of(entry.dtype) > begin)
        inside = concat(", where tensor ", in_quotes(entry.name), " lies");
  fail(ErrorKind::Corrupt, (folder_ / stored.name).string(), ": bytes ", begin, " to ", end,
       " are not those that were written", inside);
}

static void check_length(const fs::path& path, const InputFile& file, const StoredFile& stored) {
  SHOAL_CHECK(file.bytes() == stored.bytes, Corrupt, path.string(), ": has ", file.bytes(),
              " bytes, not the ", stored.bytes, " that were written");
}

void Checkpoint::verify() const {
  std::vector<std::byte> chunk;
  for (const StoredFile& stored : manifest_.files) {
    const fs::path path = folder_ / stored.name;
    SHOAL_CHECK(files_.exists(path), Corrupt, path.string(), ": is missing");
    const auto file = files_.open(path);
    check_length(path, *file, stored);
    for (std::int64_t i = 0; i < num_chunks(stored.bytes); ++i) {
      chunk.resize(static_cast<std::size_t>(std::min(kChunkBytes, stored.bytes - i * kChunkBytes)));
      file->read(i * kChunkBytes, chunk);
      check_chunk(stored, i, chunk);
    }
  }
}

std::vector<std::byte> Checkpoint::checked_bytes(const StoredFile& stored, std::int64_t begin,
                                                 std::int64_t bytes) const {
  if (bytes == 0) return {};
  const fs::path path = folder_ / stored.name;
  SHOAL_CHECK(files_.exists(path), Corrupt, path.string(), ": is missing");
  const auto file = files_.open(path);
  check_length(path, *file, stored);
  const std::int64_t first = begin / kChunkBytes;
  const std::int64_t from = first * kChunkBytes;
  const std::int64_t to = std::min(stored.bytes, num_chunks(begin + bytes) * kChunkBytes);
  std::vector<std::byte> read(static_cast<std::size_t>(to - from));
  file->read(from, read);
  for (std::int64_t at = from; at < to; at += kChunkBytes)
    check_chunk(stored, at / kChunkBytes,
                std::span(read).subspan(static_cast<std::size_t>(at - from),
                                        static_cast<std::size_t>(std::min(kChunkBytes, to - at))));
  read.erase(read.begin(), read.begin() + (begin - from));
  read.resize(static_cast<std::size_t>(bytes));
  return read;
}

// Row by row: a piece's innermost dim lies together in it and in the whole.
static void place(const Entry& entry, const Piece& piece, std::span<const std::byte> from,
                  std::span<std::byte> to) {
  const std::int64_t width = bytes_of(entry.dtype);
  const std::size_t dims = entry.shape.size();
  if (from.empty()) return;
  if (dims == 0 || piece.shape == entry.shape) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  const std::int64_t row_bytes = piece.shape[dims - 1] * width;
  const auto num_rows = static_cast<std::int64_t>(from.size()) / row_bytes;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    std::int64_t rest = row, element = piece.offset[dims - 1], stride = entry.shape[dims - 1];
    for (std::size_t dim = dims - 1; dim-- > 0;) {
      element += (rest % piece.shape[dim] + piece.offset[dim]) * stride;
      rest /= piece.shape[dim];
      stride *= entry.shape[dim];
    }
    std::memcpy(to.data() + element * width, from.data() + row * row_bytes,
                static_cast<std::size_t>(row_bytes));
  }
}

void Checkpoint::read(const Entry& entry, std::span<std::byte> to) const {
  SHOAL_CHECK(static_cast<std::int64_t>(to.size()) == elements_of(entry.shape) * bytes_of(entry.dtype),
              Internal, "checkpoint: tensor ", in_quotes(entry.name), " is read into ", to.size(), " bytes");
  for (const Piece& piece : entry.pieces) {
    const std::int64_t bytes = elements_of(piece.shape) * bytes_of(entry.dtype);
    place(entry, piece, checked_bytes(stored(piece.file), piece.begin, bytes), to);
  }
}

Newest newest_whole(FileSystem& files, const fs::path& folder) {
  Newest newest;
  auto steps = steps_among(files.list(folder));
  for (; !steps.empty(); steps.pop_back()) {
    try {
      Checkpoint checkpoint(files, folder / name_of_step(steps.back()));
      checkpoint.verify();
      newest.checkpoint.emplace(std::move(checkpoint));
      return newest;
    } catch (const Error& error) {
      newest.broken.emplace_back(error.what());
    }
  }
  return newest;
}

static bool is_whole(FileSystem& files, const fs::path& folder) {
  try {
    Checkpoint(files, folder).verify();
    return true;
  } catch (const Error&) {
    return false;
  }
}

Checkpoint checkpoint_of_step(FileSystem& files, const fs::path& folder, std::int64_t step) {
  const auto steps = steps_among(files.list(folder));
  std::string all;
  for (const std::int64_t each : steps) all += (all.empty() ? "" : ", ") + std::to_string(each);
  SHOAL_CHECK(std::ranges::find(steps, step) != steps.end(), InvalidInput, folder.string(),
              ": there is no checkpoint of step ", step, "; there are: ", all.empty() ? "none" : all);
  try {
    Checkpoint checkpoint(files, folder / name_of_step(step));
    checkpoint.verify();
    return checkpoint;
  } catch (const Error& error) {
    const auto whole = std::find_if(steps.rbegin(), steps.rend(), [&](std::int64_t each) {
      return each < step && is_whole(files, folder / name_of_step(each));
    });
    if (whole == steps.rend()) fail(ErrorKind::Corrupt, error.what(), "; no checkpoint before it is whole");
    fail(ErrorKind::Corrupt, error.what(), "; the checkpoint of step ", *whole, " is whole");
  }
}

}  // namespace shoal::checkpoint
