// SPDX-License-Identifier: Apache-2.0
// What a step depends on besides its batch, as Python holds it: everything that can be reached from the model
// and from loss_fn is found once, and then watched.
//
//   model ──► __dict__ ──► p = 0.1                          a value
//    │           ├──────► _modules ──► fc ──► …             followed: dictionaries, lists, modules, objects
//    of the user's │           ├──────► mask: a tensor                    a constant; an input "~mask" once
//    it has changed │           └──────► logger                            what it is, not what is in it └─►
//    class ──► forward ──► the globals that its code names, what it closes over
//   loss_fn ──► cells, defaults, globals ──► teacher ──► …  its tensors are inputs:
//   "~loss_fn.teacher.fc.weight"
//
// CPython counts the changes of a dictionary up to 3.12; where it does not, contents are compared.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace shoal::python {

// A hash of 128 bits. Sums of digests do not depend on order.
struct Digest {
  std::uint64_t low = 0, high = 0;
  static Digest of(std::string_view text);
  static Digest of(char kind, std::uint64_t number);
  Digest& operator+=(const Digest& other);
  Digest at(std::uint64_t place) const;  // the same content in another place is another digest
  friend bool operator==(const Digest&, const Digest&) = default;
};

// Something that holds other things and can be changed.
struct Place {
  enum class Kind { Dict, Type, Names, List, Set, Deque, Cell, Function, Slots, Array, Asked, Library };
  Kind kind;
  py::object holder;
  std::string path;                // "block.3": how a user would write it
  std::uint64_t version = 0;       // of a dictionary
  std::vector<py::object> keys;    // of Dict, Type, Names, Slots
  std::vector<py::object> values;  // null: there was none
  std::vector<Digest> digests = {};
  std::string bytes = {};  // of Array; of Asked, what the holder answers
  Digest digest = {};

  // "block.3.beta": of the i-th value.
  std::string path_of(std::size_t i) const;
};

// What a place holds now, as `keys` and `values` have it. Of Names and Slots, those of `place`.
struct Contents {
  std::vector<py::object> keys;
  std::vector<py::object> values;
};
Contents contents_of(const Place& place);
// Puts contents back.
void put(const Place& place, const Contents& contents);
// The same for an array's bytes; false if they were there.
bool put_bytes(const Place& place);
std::string bytes_of(const Place& place);
// What is compared whole.
constexpr bool has_bytes(Place::Kind kind) {
  return kind == Place::Kind::Array || kind == Place::Kind::Asked;
}

// Whether two values are the same number, string, …: no identity is asked.
bool same_value(py::handle a, py::handle b);
// Numbers, strings, None, dtypes, devices and the like.
bool is_plain_value(py::handle object);

// Made, used and destroyed with the interpreter's lock.
class Watch {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  // `ignores`: paths, with * and ?, that are known to be harmless.
  Watch(py::object module, py::object loss, std::vector<std::string> ignores);
  ~Watch();

  // Follows what has changed since it was called last; true if modules, parameters, buffers or what stands
  // beside the model may be others. A few µs where nothing has.
  bool look();

  // Equal where a step would be the same graph.
  std::string signature() const;

  const std::vector<py::object>& modules() const { return modules_; }  // the model first, then those in it
  const NamedTensors& parameters() const { return parameters_; }
  const NamedTensors& buffers() const { return buffers_; }
  // Tensors of others that a step reads anew each time; names begin with '~'.
  const NamedTensors& beside() const { return beside_; }
  const std::vector<Place>& places() const { return places_; }
  bool ignores(const std::string& path) const;
  // random.Random, NumPy's and the modules' own generators, by name.
  const std::vector<std::pair<std::string, py::object>>& generators() const { return generators_; }
  // Functions of the user's that name a module: where a message can point to.
  std::string first_use_of(const std::string& global) const;

  // A number that has had three values at least, of which two graphs need not differ in more: its value is not in
  // the signature.
  struct Varying {
    std::vector<std::pair<std::size_t, std::size_t>> at;  // place, and number in it: all that are one
    std::vector<py::object> values;                       // the last three, newest first
  };
  const std::vector<Varying>& numbers() const { return numbers_that_vary_; }
  bool asks_types() const { return asks_types_; }  // code of the user's: type(x) is float
  // Puts other objects in their places, as though they had been there at the last look; returns what was.
  std::vector<py::object> replace_numbers(const std::vector<py::object>& objects);

  // From the next look on, a file or folder is what a step depends on too: "read /a/b", see _outside.py.
  void follow_file(const std::string& file) {
    if (files_.insert(file).second) is_stale_ = true;
  }

  // From the next look on, tensors there are inputs and no constants: below this path; this tensor.
  void make_input(const std::string& path) {
    input_paths_.insert(path);
    is_stale_ = true;
  }
  // False if it is none that the watch knows.
  bool make_input(const at::Tensor& tensor);

 private:
  // A tensor as it was when it was seen.
  struct Seen {
    py::object tensor;
    std::string path;
    enum class Role { Own, Input, Constant } role;
    std::uint32_t version;
    const void* memory;
    bool requires_grad;
    std::array<const void*, 3> hooks;  // and attributes
  };

  void walk();
  void describe_all();
  Digest describe(py::handle value, const std::string& path, bool in_module);
  Digest describe_tensor(py::handle value, const std::string& path);
  Digest describe_module(const py::object& module, const std::string& path);
  Digest describe_instance(const py::object& object, const std::string& path, bool in_module);
  Digest describe_attributes(const py::object& object, const std::string& path, bool in_module);
  Digest describe_read(py::handle object, const py::object& name, const std::string& path);
  Digest describe_function(const py::object& function, const std::string& path);
  Digest ask(const char* question, const py::object& about, const std::string& path);
  Digest describe_closure(const py::object& code, const py::object& cells, const std::string& path);
  void describe_type(const py::object& type, const std::string& path);
  Digest follow(Place::Kind kind, py::object holder, const std::string& path, bool in_module,
                std::vector<py::object> names = {});
  void follow_names(const py::object& owner);
  Digest number_of(char kind, py::handle object);
  bool is_input_path(const std::string& path) const;
  void take_own_tensors();
  void finish(Place& place);
  bool patch(std::size_t place);
  void note_number(const Place& place, std::size_t i, const py::object& now);
  bool varies(const Place& place, std::size_t i) const;
  void gather_numbers();
  bool patch_tensor(Place& place, std::size_t i, const py::object& now);
  bool same_tensor(Seen& seen);
  static bool is_same(const Place& place);

  py::object module_, loss_;
  std::vector<std::string> ignores_;

  std::vector<py::object> modules_;
  NamedTensors parameters_, buffers_, beside_;
  std::vector<Place> places_;
  std::vector<std::pair<py::object, const void*>> classes_;  // of what is followed; of a class its bases
  std::vector<Seen> seen_;
  std::vector<std::pair<std::string, py::object>> generators_;
  Digest total_;

  std::set<std::string> input_paths_;
  std::set<std::string> files_;
  std::map<const void*, std::size_t> seen_at_;           // by TensorImpl
  std::unordered_map<const void*, std::string> own_;     // by TensorImpl: a parameter's or buffer's name
  std::set<const void*> own_memory_;                     // storages
  std::set<const void*> input_tensors_;                  // TensorImpls to be inputs; kept alive by seen_
  std::unordered_map<PyObject*, std::size_t> ordinals_;  // of places
  std::unordered_set<std::string> reads_;                // attributes of libraries' objects that are places
  std::unordered_map<PyObject*, std::pair<std::uint64_t, py::object>> numbers_,
      old_numbers_;  // of what is opaque
  std::uint64_t last_number_ = 0;
  std::map<std::string, std::vector<py::object>> histories_;  // by path, of numbers: values, newest first
  std::set<std::string> varying_;                             // paths of those that vary
  std::set<std::pair<std::size_t, std::size_t>> varying_at_;  // where they are now
  bool asks_types_ = false;
  std::vector<Varying> numbers_that_vary_;
  std::vector<std::pair<std::string, std::string>> global_uses_;  // name, "file:line (function)"
  bool is_stale_ = true;

  struct Python;  // what is asked of Python's modules
  std::unique_ptr<Python> python_;
};

}  // namespace shoal::python
