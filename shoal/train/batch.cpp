// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/batch.h"

#include "shoal/base/error.h"

namespace shoal {

static std::string kind_of(const Batch& batch) {
  static constexpr const char* kKinds[] = {"a tensor", "an integer", "a float", "a list", "a map"};
  return kKinds[batch.value().index()];
}

template <class T>
static const T& get(const Batch& batch, const char* wanted) {
  const T* found = std::get_if<T>(&batch.value());
  SHOAL_CHECK(found, InvalidInput, "batch: ", wanted, " was asked for, but this part of the batch is ",
              kind_of(batch));
  return *found;
}

const at::Tensor& Batch::tensor() const { return get<at::Tensor>(*this, "a tensor"); }
std::int64_t Batch::integer() const { return get<std::int64_t>(*this, "an integer"); }
double Batch::number() const { return get<double>(*this, "a float"); }

const Batch& Batch::operator[](std::size_t index) const {
  const auto& list = get<List>(*this, "an item by number");
  SHOAL_CHECK(index < list.size(), InvalidInput, "batch: item ", index, " was asked for, but there are ",
              list.size());
  return list[index];
}

const Batch& Batch::operator[](const std::string& name) const {
  const auto& map = get<Map>(*this, "an item by name");
  const auto found = map.find(name);
  if (found != map.end()) return found->second;
  std::string names;
  for (const auto& [each, item] : map) names += (names.empty() ? "" : ", ") + each;
  fail(ErrorKind::InvalidInput, "batch: there is no item \"", name, "\"; there are: ", names);
}

std::size_t Batch::size() const {
  if (const auto* list = std::get_if<List>(&value_)) return list->size();
  if (const auto* map = std::get_if<Map>(&value_)) return map->size();
  return 1;
}

static std::string joined(const std::string& path, const std::string& item) {
  return path.empty() ? item : path + "." + item;
}

static void visit_leaves(const std::string& path, const Batch& batch,
                         const std::function<void(const std::string&, const Batch&)>& visit) {
  if (const auto* list = std::get_if<Batch::List>(&batch.value())) {
    for (std::size_t i = 0; i < list->size(); ++i)
      visit_leaves(joined(path, std::to_string(i)), (*list)[i], visit);
  } else if (const auto* map = std::get_if<Batch::Map>(&batch.value())) {
    for (const auto& [name, item] : *map) visit_leaves(joined(path, name), item, visit);
  } else {
    visit(path.empty() ? "batch" : path, batch);
  }
}

void for_each_leaf(const Batch& batch, const std::function<void(const std::string&, const Batch&)>& visit) {
  visit_leaves("", batch, visit);
}

static Batch mapped(const std::string& path, const Batch& batch,
                    const std::function<at::Tensor(const std::string&, const at::Tensor&)>& replacement) {
  if (const auto* list = std::get_if<Batch::List>(&batch.value())) {
    Batch::List items;
    for (std::size_t i = 0; i < list->size(); ++i)
      items.push_back(mapped(joined(path, std::to_string(i)), (*list)[i], replacement));
    return items;
  }
  if (const auto* map = std::get_if<Batch::Map>(&batch.value())) {
    Batch::Map items;
    for (const auto& [name, item] : *map) items.emplace(name, mapped(joined(path, name), item, replacement));
    return items;
  }
  if (const auto* tensor = std::get_if<at::Tensor>(&batch.value()))
    return replacement(path.empty() ? "batch" : path, *tensor);
  return batch;
}

Batch map_tensors(const Batch& batch,
                  const std::function<at::Tensor(const std::string&, const at::Tensor&)>& replacement) {
  return mapped("", batch, replacement);
}

}  // namespace shoal
