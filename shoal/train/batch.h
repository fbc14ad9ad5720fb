// SPDX-License-Identifier: Apache-2.0
// What a training step reads: a tree of tensors, integers and floats.
//
//   Batch{x, y}                                    a tuple; batch[0], batch[1]
//   Batch{{"tokens", tokens}, {"labels", labels}}  a map; batch["tokens"]
//
// Tensors are inputs of the captured graph. Integers and floats are read by the model's control flow, so
// each value of them has a graph of its own: pass a number that changes every step as a 0-dim tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace shoal {

class Batch {
 public:
  // What it is where it is no leaf: items by number, or by name in the order of names.
  using List = std::vector<Batch>;
  using Map = std::map<std::string, Batch>;

  // Of a leaf (a tensor, shared; an integer; a float), a list or a map; none of these: an empty list. A tuple
  // or a pair is a list.
  Batch() : value_(List{}) {}
  Batch(at::Tensor tensor) : value_(std::move(tensor)) {}
  Batch(std::int64_t number) : value_(number) {}
  Batch(int number) : value_(std::int64_t{number}) {}
  Batch(double number) : value_(number) {}
  Batch(List items) : value_(std::move(items)) {}
  Batch(Map items) : value_(std::move(items)) {}
  Batch(std::vector<at::Tensor> tensors) : value_(List(tensors.begin(), tensors.end())) {}
  Batch(std::initializer_list<Batch> items) : value_(List(items)) {}
  Batch(std::initializer_list<std::pair<const std::string, Batch>> items) : value_(Map(items)) {}
  template <class... Items>
  Batch(const std::tuple<Items...>& items)
      : value_(std::apply([](const auto&... item) { return List{Batch(item)...}; }, items)) {}
  template <class First, class Second>
  Batch(const std::pair<First, Second>& items) : value_(List{Batch(items.first), Batch(items.second)}) {}

  // Each throws InvalidInput when the batch is something else or has no such item.
  const at::Tensor& tensor() const;
  std::int64_t integer() const;
  double number() const;
  const Batch& operator[](std::size_t index) const;
  const Batch& operator[](int index) const { return (*this)[static_cast<std::size_t>(index)]; }
  const Batch& operator[](const std::string& name) const;
  const Batch& operator[](const char* name) const { return (*this)[std::string(name)]; }
  operator const at::Tensor&() const { return tensor(); }
  std::size_t size() const;  // items of a list or map; 1 for a leaf

  // Whichever it is.
  const std::variant<at::Tensor, std::int64_t, double, List, Map>& value() const { return value_; }

 private:
  std::variant<at::Tensor, std::int64_t, double, List, Map> value_;
};

// Calls visit(path, leaf) for every leaf, in order; paths read "tokens", "images.0", "2.mask", and "batch"
// where the batch is a leaf itself.
void for_each_leaf(const Batch& batch,
                   const std::function<void(const std::string& path, const Batch& leaf)>& visit);
// The same tree with every tensor replaced, by its path as above.
Batch map_tensors(const Batch& batch,
                  const std::function<at::Tensor(const std::string& path, const at::Tensor&)>& replacement);

}  // namespace shoal
