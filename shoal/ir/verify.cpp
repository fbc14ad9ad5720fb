// SPDX-License-Identifier: Apache-2.0
// One function a promise, one row a function; a row says from which form to which the promise holds. Later
// checks rely on earlier ones: nothing follows an id before ids are known to be in range.
#include "shoal/ir/verify.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/text.h"
#include "shoal/ir/text.h"

namespace shoal::ir {

namespace {

// A graph and how to complain about it.
struct Subject {
  const Graph& graph;
  ErrorKind kind;

  template <class... Parts>
  [[noreturn]] void complain(const Parts&... parts) const {
    fail(kind, "verify: ", parts...);
  }
};

}  // namespace

// The message is built where the condition does not hold.
#define SHOAL_REQUIRE(condition, ...) \
  do {                                \
    if (!(condition)) [[unlikely]]    \
      is.complain(__VA_ARGS__);       \
  } while (false)

static std::string name_of(ValueId value) { return concat('%', value.index); }

static std::string name_of(const Graph& graph, std::size_t node) {
  return concat("node ", node, ", ", graph.nodes[node].op, " of module ", in_quotes(graph.nodes[node].module),
                ',');
}

static std::string name_of(Role role, std::string_view name) {
  return concat(name_of(role), ' ', in_quotes(name));
}

static void ids_are_in_range(const Subject& is) {
  const auto count = is.graph.values.size();
  for (std::size_t i = 0; i < is.graph.nodes.size(); ++i) {
    const Node& node = is.graph.nodes[i];
    for (const ValueId input : inputs_of(node))
      SHOAL_REQUIRE(input.index < count, name_of(is.graph, i), " reads ", name_of(input), ", but there are ",
                    count, " values");
    for (const auto& output : node.outputs)
      SHOAL_REQUIRE(!output || output->index < count, name_of(is.graph, i), " makes a value beyond the ",
                    count, " there are");
  }
  for (const Source& source : is.graph.sources)
    SHOAL_REQUIRE(source.value.index < count, "source ", in_quotes(source.name), " is ",
                  name_of(source.value), ", but there are ", count, " values");
  for (const Result& result : is.graph.results)
    SHOAL_REQUIRE(result.value.index < count, "result ", name_of(result.role, result.name), " is ",
                  name_of(result.value), ", but there are ", count, " values");
}

// By exactly one source, or by exactly one node, which is its producer.
static void values_are_made_once(const Subject& is) {
  std::vector<int> makers(is.graph.values.size());
  for (const Source& source : is.graph.sources) {
    ++makers[source.value.index];
    SHOAL_REQUIRE(!is.graph.at(source.value).producer, "source ", in_quotes(source.name), ", ",
                  name_of(source.value), ", has a producer");
  }
  for (std::size_t i = 0; i < is.graph.nodes.size(); ++i) {
    for (const auto& output : is.graph.nodes[i].outputs) {
      if (!output) continue;
      ++makers[output->index];
      const auto& producer = is.graph.at(*output).producer;
      SHOAL_REQUIRE(producer && producer->index == i, name_of(is.graph, i), " makes ", name_of(*output),
                    ", whose producer is ", producer ? concat("node ", producer->index) : "none");
    }
  }
  for (std::size_t value = 0; value < makers.size(); ++value)
    SHOAL_REQUIRE(makers[value] == 1, '%', value, " is made ", makers[value], " times");
}

static void values_are_made_before_they_are_read(const Subject& is) {
  for (std::size_t i = 0; i < is.graph.nodes.size(); ++i)
    for (const ValueId input : inputs_of(is.graph.nodes[i])) {
      const auto& producer = is.graph.at(input).producer;
      SHOAL_REQUIRE(!producer || producer->index < i, name_of(is.graph, i), " reads ", name_of(input),
                    ", which is made later, by node ", producer ? producer->index : 0);
    }
}

static void types_are_whole(const Subject& is) {
  for (std::size_t i = 0; i < is.graph.values.size(); ++i) {
    const TensorType& type = is.graph.values[i].type;
    SHOAL_REQUIRE(type.shape.size() == type.strides.size(), '%', i, " has ", type.shape.size(), " dims and ",
                  type.strides.size(), " strides");
    for (std::size_t dim = 0; dim < type.shape.size(); ++dim)
      SHOAL_REQUIRE(type.shape[dim] >= 0 && type.strides[dim] >= 0, '%', i, " is ", to_text(type),
                    ": sizes and strides are at least 0");
  }
}

static void arguments_have_names_of_their_own(const Subject& is) {
  for (std::size_t i = 0; i < is.graph.nodes.size(); ++i) {
    const auto& arguments = is.graph.nodes[i].arguments;
    for (std::size_t a = 0; a < arguments.size(); ++a)
      for (std::size_t b = 0; b < a; ++b)
        SHOAL_REQUIRE(arguments[a].name != arguments[b].name, name_of(is.graph, i),
                      " has two arguments named ", in_quotes(arguments[a].name));
  }
}

static bool is_one_of(Role role, std::initializer_list<Role> roles) {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

static void sources_are_named_once(const Subject& is) {
  std::set<std::pair<Role, std::string_view>> names;
  for (const Source& source : is.graph.sources) {
    const Role role = is.graph.at(source.value).role;
    SHOAL_REQUIRE(is_one_of(role, {Role::Parameter, Role::Buffer, Role::OptimizerState, Role::Gradient,
                                   Role::Input, Role::Constant, Role::Scalar}),
                  "source ", in_quotes(source.name), " has role ", name_of(role),
                  ", which only what a node makes can have");
    SHOAL_REQUIRE(names.emplace(role, source.name).second, "there are two sources ",
                  name_of(role, source.name));
    SHOAL_REQUIRE(role == Role::Constant || source.fingerprint.empty(), "source ", name_of(role, source.name),
                  " has a fingerprint, which only a constant can have");
  }
}

static void results_are_named_once(const Subject& is) {
  std::set<std::pair<Role, std::string_view>> names;
  for (const auto& [role, name, value] : is.graph.results) {
    SHOAL_REQUIRE(is_one_of(role, {Role::Loss, Role::Gradient, Role::Parameter, Role::Buffer,
                                   Role::OptimizerState, Role::Output}),
                  "result ", in_quotes(name), " has role ", name_of(role), ", which no result can have");
    SHOAL_REQUIRE(names.emplace(role, name).second, "there are two results ", name_of(role, name));
  }
}

using NameInRole = std::pair<Role, std::string_view>;

static std::map<NameInRole, ValueId> sources_by_name(const Graph& graph) {
  std::map<NameInRole, ValueId> sources;
  for (const Source& source : graph.sources)
    sources.emplace(NameInRole(graph.at(source.value).role, source.name), source.value);
  return sources;
}

// What a step changes leaves with the name, dtype and shape with which it came; a gradient is like its
// parameter.
static void results_match_their_sources(const Subject& is) {
  const auto sources = sources_by_name(is.graph);
  for (const auto& [role, name, value] : is.graph.results) {
    if (is_one_of(role, {Role::Loss, Role::Output})) continue;
    const Role source_role = role == Role::Gradient ? Role::Parameter : role;
    const auto source = sources.find({source_role, name});
    SHOAL_REQUIRE(source != sources.end(), "result ", name_of(role, name), " has no source ",
                  name_of(source_role, name));
    const TensorType& wanted = is.graph.at(source->second).type;
    const TensorType& got = is.graph.at(value).type;
    SHOAL_REQUIRE(got.shape == wanted.shape && (role == Role::Gradient || got.dtype == wanted.dtype),
                  "result ", name_of(role, name), " is ", to_text(got), ", but its source is ",
                  to_text(wanted));
  }
}

// Forward reads forward, backward reads both, the update reads all.
static void phases_do_not_look_ahead(const Subject& is) {
  for (std::size_t i = 0; i < is.graph.nodes.size(); ++i)
    for (const ValueId input : inputs_of(is.graph.nodes[i])) {
      const auto& producer = is.graph.at(input).producer;
      if (!producer) continue;
      const Phase made = is.graph.at(*producer).phase;
      const Phase read = is.graph.nodes[i].phase;
      SHOAL_REQUIRE(made <= read, name_of(is.graph, i), " is ", name_of(read), " but reads ", name_of(input),
                    ", which is made in ", name_of(made), " by node ", producer->index);
    }
}

// An update writes the new parameter or state over the old one, so nobody may read the old one afterwards.
static void updated_values_are_not_read_again(const Subject& is) {
  const auto sources = sources_by_name(is.graph);
  std::map<ValueId, std::size_t> replaced_by;  // source → the node that writes over it
  for (const auto& [role, name, value] : is.graph.results) {
    const auto& producer = is.graph.at(value).producer;
    if (!producer || is.graph.at(*producer).phase != Phase::Update) continue;
    if (const auto source = sources.find({role, name}); source != sources.end())
      replaced_by.emplace(source->second, producer->index);
  }
  for (std::size_t i = 0; i < is.graph.nodes.size(); ++i)
    for (const ValueId input : inputs_of(is.graph.nodes[i])) {
      const auto update = replaced_by.find(input);
      SHOAL_REQUIRE(update == replaced_by.end() || update->second >= i, name_of(is.graph, i), " reads ",
                    name_of(input), " after node ", update == replaced_by.end() ? 0 : update->second,
                    " has written its new value over it");
    }
}

namespace {
struct Check {
  Form first;
  Form last;
  void (*check)(const Subject&);
};
}  // namespace

// In an order in which each may rely on those above.
static constexpr Check kChecks[] = {
    {Form::Captured, Form::Local, ids_are_in_range},
    {Form::Captured, Form::Local, values_are_made_once},
    {Form::Captured, Form::Local, values_are_made_before_they_are_read},
    {Form::Captured, Form::Local, types_are_whole},
    {Form::Captured, Form::Local, arguments_have_names_of_their_own},
    {Form::Captured, Form::Local, sources_are_named_once},
    {Form::Captured, Form::Local, results_are_named_once},
    {Form::Captured, Form::Captured,
     results_match_their_sources},  // locally a parameter is a shard, its gradient maybe not
    {Form::Captured, Form::Local, phases_do_not_look_ahead},
    {Form::Captured, Form::Local, updated_values_are_not_read_again},
};

void verify(const Graph& graph, ErrorKind kind) {
  for (const auto& [first, last, check] : kChecks)
    if (first <= graph.form && graph.form <= last) check({graph, kind});
}

}  // namespace shoal::ir
