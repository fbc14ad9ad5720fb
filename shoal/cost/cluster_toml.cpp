// SPDX-License-Identifier: Apache-2.0
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <span>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cost/cluster.h"

namespace shoal::cost {

namespace {

struct Unit {
  std::string_view name;
  double worth;
};

// What a number may be of, the first unit the one that an error shows.
struct Quantity {
  const char* name;
  std::span<const Unit> units;
  const char* example;
};

constexpr Unit kSeconds[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
constexpr Unit kBytes[] = {{"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
                           {"MiB", 1048576.0},    {"KiB", 1024.0},
                           {"GB", 1e9},           {"MB", 1e6},
                           {"kB", 1e3},           {"B", 1}};
constexpr Unit kBytesPerSecond[] = {{"GB/s", 1e9},           {"TB/s", 1e12},      {"MB/s", 1e6},
                                    {"kB/s", 1e3},           {"B/s", 1},          {"Gbit/s", 1e9 / 8},
                                    {"Mbit/s", 1e6 / 8},     {"kbit/s", 1e3 / 8}, {"bit/s", 1.0 / 8},
                                    {"GiB/s", 1073741824.0}, {"MiB/s", 1048576.0}};
constexpr Unit kOperations[] = {{"GFLOP", 1e9}, {"TFLOP", 1e12}, {"MFLOP", 1e6}, {"kFLOP", 1e3}, {"FLOP", 1}};
constexpr Unit kOperationsPerSecond[] = {
    {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}, {"GFLOP/s", 1e9}, {"MFLOP/s", 1e6}, {"FLOP/s", 1}};

constexpr Quantity kTime = {"a time", kSeconds, "1.5 us"};
constexpr Quantity kMemory = {"bytes", kBytes, "80 GiB"};
constexpr Quantity kBandwidth = {"bytes in a time", kBytesPerSecond, "100 Gbit/s"};
constexpr Quantity kWork = {"operations", kOperations, "2 GFLOP"};
constexpr Quantity kSpeed = {"operations in a time", kOperationsPerSecond, "19.5 TFLOP/s"};

constexpr std::int64_t kMostDevices = 1'000'000;

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  Cluster read(const toml::table& document) const {
    Cluster cluster;
    const std::string top;
    check_keys(document, top, {"machine", "kinds", "hosts", "links", "overlap"});
    if (const auto* machine = document.get("machine")) cluster.machine = text_of(*machine, "machine");
    for (const auto& [name, node] : section(document, "kinds")) {
      const std::string key = concat("kinds.", name.str());
      cluster.kinds.emplace(name.str(), kind_of(table_of(node, key), std::string(name.str()), key));
    }
    read_hosts(document, cluster);
    const toml::table& links = section(document, "links");
    check_keys(links, "links", {"devices", "hosts"});
    if (const auto* node = links.get("devices")) cluster.inside = link_of(*node, "links.devices");
    if (const auto* node = links.get("hosts")) cluster.between = link_of(*node, "links.hosts");
    check_links(document, cluster);
    if (const auto* node = document.get("overlap")) {
      const toml::table& overlap = table_of(*node, "overlap");
      check_keys(overlap, "overlap", {"compute", "message"});
      if (const auto* compute = overlap.get("compute"))
        cluster.overlap = number_of(*compute, "overlap.compute", 1);
      if (const auto* message = overlap.get("message"))
        cluster.message_overlap = number_of(*message, "overlap.message", 1);
    }
    return cluster;
  }

 private:
  std::string place(const toml::node& node) const {
    return concat(file_, ':', node.source().begin.line, ": ");
  }
  [[noreturn]] void wrong(const toml::node& node, const std::string& key, const std::string& what) const {
    fail(ErrorKind::InvalidInput, place(node), key, ": ", what);
  }

  void check_keys(const toml::table& table, const std::string& section,
                  std::initializer_list<std::string_view> known) const {
    for (const auto& [key, node] : table) {
      if (std::ranges::find(known, key.str()) != known.end()) continue;
      fail(ErrorKind::InvalidInput, file_, ':', key.source().begin.line, ": ",
           section.empty() ? "" : section + ".", key.str(), ": nothing reads it; did you mean ",
           in_quotes(nearest(key.str(), std::span(known.begin(), known.size()))), "?");
    }
  }
  const toml::table& table_of(const toml::node& node, const std::string& key) const {
    if (const auto* table = node.as_table()) return *table;
    wrong(node, key, "is not a section");
  }
  const toml::table& section(const toml::table& document, std::string_view name) const {
    static const toml::table empty;
    const auto* node = document.get(name);
    return node == nullptr ? empty : table_of(*node, std::string(name));
  }
  const toml::node& needed(const toml::table& table, std::string_view name, const std::string& key,
                           const Quantity& quantity) const {
    if (const auto* node = table.get(name)) return *node;
    fail(ErrorKind::InvalidInput, place(table), key, ": has no ", name, ". Remedy: a line such as ", name,
         " = \"", quantity.example, '"');
  }
  std::string text_of(const toml::node& node, const std::string& key) const {
    if (const auto text = node.value_exact<std::string>()) return *text;
    wrong(node, key, "is not a text");
  }
  double number_of(const toml::node& node, const std::string& key, double least) const {
    const auto number = node.value<double>();
    if (!node.is_number() || !number) wrong(node, key, "is not a number");
    if (!std::isfinite(*number) || *number < least)
      wrong(node, key, concat("is ", *number, ", not ", least, " or more"));
    return *number;
  }
  int count_of(const toml::node& node, const std::string& key) const {
    const auto number = node.value_exact<std::int64_t>();
    if (!number || *number < 1 || *number > kMostDevices)
      wrong(node, key, concat("is not a number from 1 to ", kMostDevices));
    return static_cast<int>(*number);
  }

  std::int64_t memory_of(const toml::node& node, const std::string& key) const {
    constexpr double kMost = 1e18;
    const double bytes = amount_of(node, key, kMemory, false);
    if (bytes > kMost) wrong(node, key, concat(in_quotes(text_of(node, key)), " is more than an exabyte"));
    return static_cast<std::int64_t>(bytes);
  }
  double amount_of(const toml::node& node, const std::string& key, const Quantity& quantity,
                   bool may_be_zero) const {
    const std::string as = concat("; wanted ", quantity.name, ", as in \"", quantity.example, '"');
    if (node.is_number()) wrong(node, key, concat("has no unit", as));
    const std::string text = text_of(node, key);
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || !std::isfinite(number))
      wrong(node, key, concat(in_quotes(text), " is not a number with a unit", as));
    std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    while (unit.starts_with(' ')) unit.remove_prefix(1);
    if (unit.empty()) wrong(node, key, concat(in_quotes(text), " has no unit", as));
    const auto row = std::ranges::find(quantity.units, unit, &Unit::name);
    if (row == quantity.units.end())
      wrong(node, key, concat(in_quotes(unit), " is no unit of ", quantity.name, as));
    const double amount = number * row->worth;
    if (amount < 0 || (amount == 0 && !may_be_zero))
      wrong(node, key, concat(in_quotes(text), " is not above 0"));
    if (!std::isfinite(amount)) wrong(node, key, concat(in_quotes(text), " is more than a number holds"));
    return amount;
  }

  Rate rate_of(const toml::node& peak, const toml::node* shares, const std::string& key, const Quantity& of,
               const Quantity& amounts) const {
    Rate rate = {.peak = amount_of(peak, key, of, false)};
    if (shares == nullptr) return rate;
    rate.shares = points_of(*shares, key, amounts, " of the peak");
    return rate;
  }
  std::vector<std::pair<double, double>> points_of(const toml::node& points, const std::string& key,
                                                   const Quantity& amounts, std::string_view what) const {
    const auto* list = points.as_array();
    const std::string wanted = concat("is not a list of pairs, as in [[\"", amounts.example, "\", 0.7]]");
    if (list == nullptr || list->empty()) wrong(points, key, wanted);
    std::vector<std::pair<double, double>> found;
    for (const auto& node : *list) {
      const auto* pair = node.as_array();
      if (pair == nullptr || pair->size() != 2) wrong(node, key, wanted);
      const double amount = amount_of(pair->at(0), key, amounts, false);
      const double number = number_of(pair->at(1), key, 0);
      if (number <= 0) wrong(node, key, concat(number, what, " is not above 0"));
      if (!found.empty() && amount <= found.back().first) wrong(node, key, "the amounts do not rise");
      found.emplace_back(amount, number);
    }
    return found;
  }
  Slower slower_of(const toml::node& node, const std::string& key) const {
    if (node.is_array()) return Slower(points_of(node, key, kTime, " times as long"));
    const double times = number_of(node, key, 0);
    if (times <= 0) wrong(node, key, concat("is ", times, ", not above 0"));
    return times;
  }

  Kind kind_of(const toml::table& table, std::string name, const std::string& key) const {
    Kind kind = {.name = std::move(name)};
    kind.memory = memory_of(needed(table, "memory", key, kMemory), key + ".memory");
    kind.bandwidth = rate_of(needed(table, "memory_bandwidth", key, kBandwidth), table.get("memory_shares"),
                             key + ".memory_bandwidth", kBandwidth, kMemory);
    kind.kernel_seconds =
        amount_of(needed(table, "kernel_floor", key, kTime), key + ".kernel_floor", kTime, true);
    if (const auto* node = table.get("head_floor"))
      kind.head_seconds = amount_of(*node, key + ".head_floor", kTime, true);
    if (const auto* node = table.get("step_floor"))
      kind.step_seconds = amount_of(*node, key + ".step_floor", kTime, true);
    for (const auto& [word, node] : table) {
      const std::string inner = concat(key, '.', word.str());
      if (word == "memory" || word == "memory_bandwidth" || word == "memory_shares" ||
          word == "kernel_floor" || word == "head_floor" || word == "step_floor")
        continue;
      if (word == "source") {
        text_of(node, inner);
      } else if (word == "slower") {
        for (const auto& [op, times] : table_of(node, inner))
          kind.slower.emplace(op.str(), slower_of(times, concat(inner, '.', op.str())));
      } else if (const auto dtype = parse_dtype(word.str())) {
        const toml::table& arithmetic = table_of(node, inner);
        check_keys(arithmetic, inner, {"peak", "shares"});
        kind.arithmetic.emplace(*dtype, rate_of(needed(arithmetic, "peak", inner, kSpeed),
                                                arithmetic.get("shares"), inner, kSpeed, kWork));
      } else {
        fail(ErrorKind::InvalidInput, file_, ':', word.source().begin.line, ": ", inner,
             ": nothing reads it; there are memory, memory_bandwidth, memory_shares, kernel_floor, "
             "head_floor, step_floor, source, slower, and a section for each dtype, such as float32");
      }
    }
    if (kind.arithmetic.empty())
      fail(ErrorKind::InvalidInput, place(table), key, ": has no dtype. Remedy: [", key,
           ".float32] with peak = \"", kSpeed.example, '"');
    return kind;
  }

  void read_hosts(const toml::table& document, Cluster& cluster) const {
    const auto* node = document.get("hosts");
    const auto* list = node == nullptr ? nullptr : node->as_array();
    SHOAL_CHECK(list != nullptr && !list->empty(), InvalidInput, file_,
                ": has no hosts. Remedy: [[hosts]] with kind, devices and count");
    std::int64_t all = 0;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string key = concat("hosts.", i);
      const toml::table& table = table_of(list->at(i), key);
      check_keys(table, key, {"kind", "devices", "count"});
      Host host;
      if (const auto* kind = table.get("kind")) host.kind = text_of(*kind, key + ".kind");
      if (!cluster.kinds.contains(host.kind))
        wrong(list->at(i), key + ".kind", concat("there is no [kinds.", host.kind, ']'));
      if (const auto* devices = table.get("devices")) host.devices = count_of(*devices, key + ".devices");
      if (const auto* count = table.get("count")) host.count = count_of(*count, key + ".count");
      all += std::int64_t{host.devices} * host.count;
      if (all > kMostDevices)
        wrong(list->at(i), key, concat("with it there are more than ", kMostDevices, " devices"));
      cluster.hosts.push_back(std::move(host));
    }
  }

  static constexpr std::array kPriced = {sharding::Collective::AllReduce, sharding::Collective::ReduceScatter,
                                         sharding::Collective::AllGather, sharding::Collective::AllToAll,
                                         sharding::Collective::Send};
  Link link_of(const toml::node& node, const std::string& key) const {
    const toml::table& table = table_of(node, key);
    check_keys(table, key, {"latency", "bandwidth", "shared", "overlaps", "slower"});
    Link link;
    link.latency = amount_of(needed(table, "latency", key, kTime), key + ".latency", kTime, true);
    link.bandwidth =
        amount_of(needed(table, "bandwidth", key, kBandwidth), key + ".bandwidth", kBandwidth, false);
    for (const auto& [name, target] :
         {std::pair("shared", &link.is_shared), std::pair("overlaps", &link.overlaps)})
      if (const auto* value = table.get(name)) {
        if (!value->is_boolean()) wrong(*value, concat(key, '.', name), "is not true or false");
        *target = value->value_or(false);
      }
    if (const auto* slower = table.get("slower"))
      for (const auto& [name, times] : table_of(*slower, key + ".slower")) {
        const std::string inner = concat(key, ".slower.", name.str());
        const auto kind = std::ranges::find(
            kPriced, name.str(), [](sharding::Collective each) { return sharding::name_of(each); });
        if (kind == kPriced.end())
          wrong(times, inner, "is not one of all_reduce, reduce_scatter, all_gather, all_to_all and send");
        link.slower.emplace(*kind, slower_of(times, inner));
      }
    return link;
  }

  // Those that ranks of this cluster would speak over.
  void check_links(const toml::table& document, const Cluster& cluster) const {
    const bool has_neighbours =
        std::ranges::any_of(cluster.hosts, [](const Host& host) { return host.devices > 1; });
    if (has_neighbours && cluster.inside.bandwidth == 0)
      fail(ErrorKind::InvalidInput, place(document),
           "hosts have several devices, and there is no [links.devices]");
    if ((cluster.hosts.size() > 1 || cluster.hosts[0].count > 1) && cluster.between.bandwidth == 0)
      fail(ErrorKind::InvalidInput, place(document), "there are several hosts, and no [links.hosts]");
  }

  std::string file_;
};

}  // namespace

Cluster cluster_from_toml(std::string_view text, const std::string& file) {
  const toml::table document = [&] {
    try {
      return toml::parse(text, file);
    } catch (const toml::parse_error& error) {
      fail(ErrorKind::InvalidInput, file, ':', error.source().begin.line, ": ", error.description());
    }
  }();
  return Reader(file).read(document);
}

static std::string shortest(double number) {
  std::array<char, 32> digits = {};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  std::string text(digits.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";  // large integers of TOML are no doubles
  return text;
}

// In the largest unit of which it is one or more; where that does not bring every bit back, in that which is worth 1.
static std::string with_unit(double number, const Quantity& quantity) {
  const Unit* best = &*std::ranges::find(quantity.units, 1.0, &Unit::worth);
  const Unit one = *best;
  for (const Unit& unit : quantity.units)
    if (unit.worth <= number && (unit.worth > best->worth || best->worth > number)) best = &unit;
  std::array<char, 32> digits = {};
  for (int precision = 4; precision <= 17; ++precision) {
    std::snprintf(digits.data(), digits.size(), "%.*g", precision, number / best->worth);
    double back = 0;
    std::from_chars(digits.data(), digits.data() + std::string_view(digits.data()).size(), back);
    if (back * best->worth == number) return concat('"', digits.data(), ' ', best->name, '"');
  }
  return concat('"', shortest(number), ' ', one.name, '"');
}

static void write_points(std::string& text, std::string_view key,
                         const std::vector<std::pair<double, double>>& points, const Quantity& amounts) {
  if (points.empty()) return;
  text += concat(key, " = [");
  for (const auto& [amount, number] : points)
    text +=
        concat(text.back() == '[' ? "" : ", ", '[', with_unit(amount, amounts), ", ", shortest(number), ']');
  text += "]\n";
}

static void write_slower(std::string& text, std::string_view key, const Slower& slower) {
  if (slower.points.size() > 1)
    write_points(text, key, slower.points, kTime);
  else
    text += concat(key, " = ", shortest(slower.points.front().second), '\n');
}

static void write_link(std::string& text, const char* name, const Link& link) {
  if (link.bandwidth == 0) return;
  text += concat("\n[links.", name, "]\nlatency = ", with_unit(link.latency, kTime),
                 "\nbandwidth = ", with_unit(link.bandwidth, kBandwidth),
                 "\nshared = ", link.is_shared ? "true" : "false",
                 "\noverlaps = ", link.overlaps ? "true" : "false", '\n');
  if (!link.slower.empty()) text += concat("\n[links.", name, ".slower]\n");
  for (const auto& [kind, slower] : link.slower) write_slower(text, sharding::name_of(kind), slower);
}

std::string to_toml(const Cluster& cluster) {
  std::string text;
  if (!cluster.machine.empty()) text += concat("machine = ", in_quotes(cluster.machine), "\n\n");
  for (const auto& [name, kind] : cluster.kinds) {
    text += concat("[kinds.", in_quotes(name),
                   "]\nmemory = ", with_unit(static_cast<double>(kind.memory), kMemory),
                   "\nmemory_bandwidth = ", with_unit(kind.bandwidth.peak, kBandwidth), '\n');
    write_points(text, "memory_shares", kind.bandwidth.shares, kMemory);
    text += concat("kernel_floor = ", with_unit(kind.kernel_seconds, kTime), '\n');
    if (kind.head_seconds > 0) text += concat("head_floor = ", with_unit(kind.head_seconds, kTime), '\n');
    if (kind.step_seconds > 0) text += concat("step_floor = ", with_unit(kind.step_seconds, kTime), '\n');
    for (const auto& [dtype, rate] : kind.arithmetic) {
      text += concat("\n[kinds.", in_quotes(name), '.', shoal::name_of(dtype),
                     "]\npeak = ", with_unit(rate.peak, kSpeed), '\n');
      write_points(text, "shares", rate.shares, kWork);
    }
    if (!kind.slower.empty()) text += concat("\n[kinds.", in_quotes(name), ".slower]\n");
    for (const auto& [op, slower] : kind.slower) write_slower(text, in_quotes(op), slower);
    text += '\n';
  }
  for (const auto& [kind, devices, count] : cluster.hosts)
    text += concat("[[hosts]]\nkind = ", in_quotes(kind), "\ndevices = ", devices, "\ncount = ", count, '\n');
  write_link(text, "devices", cluster.inside);
  write_link(text, "hosts", cluster.between);
  if (cluster.overlap != 1 || cluster.message_overlap != 1)
    text += concat("\n[overlap]\ncompute = ", shortest(cluster.overlap),
                   "\nmessage = ", shortest(cluster.message_overlap), '\n');
  return text;
}

}  // namespace shoal::cost
