// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/data/hash.h"

namespace shoal::train {

std::int64_t hash_of(const std::string& text) { return static_cast<std::int64_t>(data::hash_bytes(text)); }

// One row a rank.
static at::Tensor rows_of_all(const runtime::Group& group, const at::Tensor& mine) {
  at::Tensor all = at::empty({group.size(), mine.numel()}, mine.options());
  group.communicator
      ->all_gather({mine.const_data_ptr(), mine.numel(), aten::from_torch(mine.scalar_type())},
                   {all.data_ptr(), all.numel(), aten::from_torch(all.scalar_type())})
      ->wait(group.limit);
  return all;
}

// `sizes`: of all ranks' texts.
static std::vector<std::string> texts_of_all(const runtime::Group& group, const std::string& text,
                                             const std::vector<std::int64_t>& sizes) {
  at::Tensor bytes = at::zeros({*std::ranges::max_element(sizes)}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
  const at::Tensor all = rows_of_all(group, bytes);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto* begin = all[static_cast<std::int64_t>(rank)].const_data_ptr<std::uint8_t>();
    texts.emplace_back(begin, begin + sizes[rank]);
  }
  return texts;
}

static std::vector<std::int64_t> sizes_of_all(const runtime::Group& group, const std::string& text) {
  const at::Tensor sizes =
      rows_of_all(group, at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong));
  return {sizes.const_data_ptr<std::int64_t>(), sizes.const_data_ptr<std::int64_t>() + sizes.numel()};
}

// Whether the first lines of both are of one item of the batch, of which only sizes differ.
static bool are_other_sizes(const std::string& first, const std::string& second) {
  const auto head = [](const std::string& text) { return text.substr(0, text.find('[')); };
  return first.starts_with("batch item ") && head(first).size() < first.find('\n') &&
         head(first) == head(second);
}

static bool are_changes(const std::string& first, const std::string& second) {
  constexpr std::string_view kBegin = "changed between calls: ";  // train/changes.h
  return first.starts_with(kBegin) || second.starts_with(kBegin);
}

void check_same(const runtime::Group& group, const std::string& what, const std::string& text) {
  const at::Tensor hashes = rows_of_all(group, at::full({1}, hash_of(text), at::kLong));
  std::size_t other = 0;
  for (int rank = group.size(); rank-- > 1;)
    if (hashes[rank].item<std::int64_t>() != hashes[0].item<std::int64_t>())
      other = static_cast<std::size_t>(rank);
  if (other == 0) return;
  const auto texts = texts_of_all(group, text, sizes_of_all(group, text));
  std::string first = texts[0], second = texts[other];
  while (!first.empty() && first.substr(0, first.find('\n')) == second.substr(0, second.find('\n'))) {
    first.erase(0, std::min(first.find('\n'), first.size() - 1) + 1);
    second.erase(0, std::min(second.find('\n'), second.size() - 1) + 1);
  }
  fail(ErrorKind::InvalidInput, "trainer: ranks differ in ", what, ": rank 0 has '",
       first.substr(0, first.find('\n')), "', rank ", other, " has '", second.substr(0, second.find('\n')),
       are_other_sizes(first, second) ? "'. Remedy: pad alike on all ranks, to the longest of all or to a "
                                        "fixed length; and if samples lie in "
                                        "that dim, Parallelism(batch_dims={…})"
       : are_changes(first, second) ? "'. Remedy: a forward of your own in training mode, and any change to "
                                      "parameters or buffers, on all "
                                      "ranks alike"
                                    : "'. Every rank has to run the same code with the same settings");
}

std::string from_first(const runtime::Group& group, const std::function<std::string()>& make) {
  std::string text;
  together(group, [&] {
    if (group.rank() == 0) text = make();
  });
  return texts_of_all(group, text, sizes_of_all(group, text)).front();
}

bool on_all(const runtime::Group& group, bool is_so) {
  return rows_of_all(group, at::full({1}, is_so ? 1 : 0, at::kLong)).all().item<bool>();
}

void together(const runtime::Group& group, const std::function<void()>& act) {
  std::string error;
  try {
    act();
  } catch (const std::exception& thrown) {
    error = thrown.what();
    if (error.empty()) error = "an error without words";
  }
  const auto sizes = sizes_of_all(group, error);
  if (std::ranges::all_of(sizes, [](std::int64_t size) { return size == 0; })) return;
  const auto texts = texts_of_all(group, error, sizes);
  const auto first = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
  fail(ErrorKind::InvalidInput, *first, " (rank ", first - texts.begin(), ")");
}

}  // namespace shoal::train
