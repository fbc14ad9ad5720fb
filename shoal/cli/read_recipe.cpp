// SPDX-License-Identifier: Apache-2.0
// TOML into a recipe, by the table of options alone; an override is a line of TOML with another place in its
// errors.
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>
#include <variant>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/recipe.h"
#include "shoal/cli/recipe_checks.h"

namespace shoal::cli {

namespace {

// One `section.key = value`, and where it was written.
struct Setting {
  std::string section;
  std::string key;
  const toml::node* value;  // borrowed from its document
  std::string place;        // "gpt.toml:3" or "--training.steps=x"

  std::string name() const { return section.empty() ? key : section + "." + key; }
};

}  // namespace

static std::string number_text(double number) {
  std::ostringstream out;
  out << number;
  return std::move(out).str();
}

static std::string kind_of_value(const toml::node& node) {
  std::ostringstream text;
  node.visit([&](const auto& value) {
    if constexpr (toml::is_array<decltype(value)>) {
      text << "a list";
    } else if constexpr (toml::is_table<decltype(value)>) {
      text << "a section";
    } else if constexpr (toml::is_string<decltype(value)>) {
      text << "the string " << in_quotes(value.get());
    } else if constexpr (toml::is_boolean<decltype(value)>) {
      text << "the boolean " << (value.get() ? "true" : "false");
    } else {
      text << (toml::is_integer<decltype(value)> ? "the integer " : "the number ") << value.get();
    }
  });
  return std::move(text).str();
}

[[noreturn]] static void fail_at(const Setting& setting, const std::string& what) {
  fail(ErrorKind::InvalidInput, setting.place, ": ", setting.name(), ": ", what);
}

static void check_range(const Setting& setting, const Option& option, double number) {
  if (number >= option.least && number <= option.most) return;
  fail_at(setting, number_text(number) + " is not between " + number_text(option.least) + " and " +
                       number_text(option.most));
}

static std::int64_t integer_of(const Setting& setting, const Option& option, const toml::node& node,
                               const std::string& wanted) {
  const auto number = node.value_exact<std::int64_t>();
  if (!number) fail_at(setting, "wants " + wanted + ", got " + kind_of_value(node));
  check_range(setting, option, static_cast<double>(*number));
  return *number;
}

namespace {

// Puts a setting's value into the field of its option.
struct Assign {
  const Setting& setting;
  const Option& option;

  void operator()(std::int64_t* target) const {
    *target = integer_of(setting, option, *setting.value, "an integer");
  }
  void operator()(double* target) const {
    if (!setting.value->is_number()) wrong("a number");
    const double number = setting.value->value<double>().value_or(std::nan(""));
    check_range(setting, option, number);
    *target = number;
  }
  void operator()(bool* target) const {
    if (!setting.value->is_boolean()) wrong("true or false");
    *target = setting.value->value_or(false);
  }
  void operator()(std::string* target) const {
    if (!setting.value->is_string()) wrong("a string");
    *target = setting.value->value_or(std::string());
  }
  void operator()(std::vector<std::int64_t>* target) const {
    const toml::array* list = setting.value->as_array();
    if (list == nullptr) wrong("a list of integers");
    target->clear();
    for (const toml::node& item : *list)
      target->push_back(integer_of(setting, option, item, "a list of integers"));
  }
  void operator()(const Choice& choice) const {
    if (!setting.value->is_string()) wrong("a string");
    const std::string word = setting.value->value_or(std::string());
    const auto at = std::find(choice.names.begin(), choice.names.end(), word);
    if (at == choice.names.end())
      fail_at(setting, "there is no " + in_quotes(word) + "; did you mean " +
                           in_quotes(nearest(word, choice.names)) + "?");
    choice.set(choice.target, static_cast<std::size_t>(at - choice.names.begin()));
  }
  [[noreturn]] void wrong(const std::string& wanted) const {
    fail_at(setting, "wants " + wanted + ", got " + kind_of_value(*setting.value));
  }
};

}  // namespace

static std::string place_of(const std::string& path, const toml::source_region& source) {
  return path + ":" + std::to_string(source.begin.line);
}

static void append_settings(const toml::table& document, const std::string& path,
                            std::vector<Setting>& settings) {
  for (const auto& [section, node] : document) {
    if (const toml::array* list = node.as_array(); list != nullptr && list->is_array_of_tables()) {
      for (std::size_t i = 0; i < list->size(); ++i)
        for (const auto& [key, value] : *list->get_as<toml::table>(i))
          settings.push_back({std::string(section.str()), concat(i, '.', std::string_view(key.str())), &value,
                              place_of(path, key.source())});
      continue;
    }
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      settings.push_back({"", std::string(section.str()), &node, place_of(path, section.source())});
      continue;
    }
    for (const auto& [key, value] : *table)
      settings.push_back(
          {std::string(section.str()), std::string(key.str()), &value, place_of(path, key.source())});
  }
}

static toml::table parse(std::string_view text, const std::string& path) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    fail(ErrorKind::InvalidInput, place_of(path, error.source()), ": ", error.description());
  }
}

// "--training.steps=5" as TOML. What does not read as a number, a boolean, a list or a quoted string is a
// string as it stands, so that a shell needs no second quotes.
static toml::table parse_override(const std::string& argument) {
  const std::size_t equals = argument.find('=');
  const std::size_t dot = argument.find('.');
  SHOAL_CHECK(argument.starts_with("--") && equals != std::string::npos && dot != std::string::npos &&
                  dot < equals && dot > 2 && dot + 1 < equals,
              InvalidInput, argument, ": an override reads --section.key=value");
  const std::string name = argument.substr(2, equals - 2);
  const std::string text = argument.substr(equals + 1);
  toml::table value;
  try {
    value = toml::parse("value = " + text);
  } catch (const toml::parse_error&) {
    value = toml::table{{"value", text}};
  }
  toml::table section;
  section.insert(argument.substr(dot + 1, equals - dot - 1), std::move(*value.get("value")));
  toml::table document;
  document.insert(argument.substr(2, dot - 2), std::move(section));
  return document;
}

// "0.lr" is a key of the first of the [[tables]].
template <class Item>
static void make_room(const Setting& setting, std::vector<Item>& items) {
  constexpr std::size_t kMost = 64;
  std::size_t number = 0;
  const char* const end = setting.key.data() + setting.key.size();
  const auto [stop, error] = std::from_chars(setting.key.data(), end, number);
  SHOAL_CHECK(error == std::errc() && stop != end && *stop == '.', InvalidInput, setting.place, ": ",
              setting.name(), ": this is a list: a file has [[", setting.section,
              "]], with two brackets, and an override "
              "a number, --",
              setting.section, ".0.", setting.key, "=…");
  SHOAL_CHECK(number < kMost, InvalidInput, setting.place, ": ", setting.name(), ": there are at most ",
              kMost, " of them");
  if (number >= items.size()) items.resize(number + 1);
}

static void apply(const std::vector<Setting>& settings, Recipe& recipe, bool only_the_model) {
  for (const Setting& setting : settings)
    if (setting.section == "tables")
      make_room(setting, recipe.tables);
    else if (setting.section == "annotate")
      make_room(setting, recipe.annotate);
  const std::vector<Option> options = options_of(recipe);
  for (const Setting& setting : settings) {
    const bool chooses_model = setting.name() == "model.name" || setting.name() == "model.flavor";
    if (chooses_model != only_the_model) continue;
    const auto option = std::find_if(options.begin(), options.end(), [&](const Option& row) {
      return row.section == setting.section && row.key == setting.key;
    });
    if (option != options.end()) {
      std::visit(Assign{setting, *option}, option->target);
      continue;
    }
    std::vector<std::string> names;
    for (const Option& row : options) names.push_back(concat(row.section, ".", row.key));
    const std::vector<std::string_view> candidates(names.begin(), names.end());
    fail(ErrorKind::InvalidInput, setting.place, ": there is no key ", setting.name(),
         setting.section == "model" ? " of the model " + recipe.model.name : "", "; did you mean ",
         nearest(setting.name(), candidates), "?");
  }
}

static void choose_model(Recipe& recipe, const std::string& place) {
  std::vector<std::string_view> names;
  std::vector<std::string_view> sizes;
  for (const models::Flavor& row : models::flavors()) {
    names.push_back(row.model);
    if (row.model == recipe.model.name) sizes.push_back(row.flavor);
  }
  SHOAL_CHECK(!sizes.empty(), InvalidInput, place, ": model.name: there is no model ",
              in_quotes(recipe.model.name), "; did you mean ", in_quotes(nearest(recipe.model.name, names)),
              "?");
  const auto config = models::find(recipe.model.name, recipe.model.flavor);
  SHOAL_CHECK(config, InvalidInput, place, ": model.flavor: ", recipe.model.name, " has no flavor ",
              in_quotes(recipe.model.flavor), "; did you mean ",
              in_quotes(nearest(recipe.model.flavor, sizes)), "?");
  recipe.model.config = *config;
}

// As a shell takes it: in quotes where it has to be.
static std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

static Recipe recipe_of(const std::vector<Setting>& settings, const std::string& place) {
  Recipe recipe;
  apply(settings, recipe, true);
  choose_model(recipe, place);
  apply(settings, recipe, false);
  check_together(recipe, place);
  return recipe;
}

Recipe recipe_in(std::string_view text, const std::string& path, const std::vector<std::string>& overrides) {
  std::vector<toml::table> documents;
  documents.reserve(overrides.size() + 1);  // settings borrow from them
  std::vector<Setting> settings;
  documents.push_back(parse(text, path));
  append_settings(documents.back(), path, settings);
  for (const std::string& argument : overrides) {
    documents.push_back(parse_override(argument));
    const std::size_t first = settings.size();
    append_settings(documents.back(), "", settings);
    for (std::size_t i = first; i < settings.size(); ++i) settings[i].place = argument;
  }
  Recipe recipe = recipe_of(settings, path);
  recipe.command = shell_word(path);
  for (const std::string& argument : overrides) recipe.command += " " + shell_word(argument);
  return recipe;
}

Recipe read_recipe(const std::string& path, const std::vector<std::string>& overrides) {
  std::ifstream file(path, std::ios::binary);
  SHOAL_CHECK(file, InvalidInput, path, ": there is no such recipe");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return recipe_in(text, path, overrides);
}

Recipe recipe_from(const std::map<std::string, std::string>& texts, const std::string& place) {
  std::vector<toml::table> documents;
  documents.reserve(texts.size());
  std::vector<Setting> settings;
  for (const auto& [name, value] : texts) {
    documents.push_back(parse_override("--" + name + "=" + value));
    const std::size_t first = settings.size();
    append_settings(documents.back(), "", settings);
    for (std::size_t i = first; i < settings.size(); ++i) settings[i].place = place;
  }
  return recipe_of(settings, place);
}

}  // namespace shoal::cli
