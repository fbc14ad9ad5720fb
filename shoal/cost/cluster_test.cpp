// SPDX-License-Identifier: Apache-2.0
#include "shoal/cost/cluster.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "shoal/base/error.h"

using namespace shoal;
using namespace shoal::cost;

static constexpr const char* kTwoHosts = R"([kinds.a]
memory = "16 GiB"
memory_bandwidth = "100 GB/s"
memory_shares = [["1 MiB", 4.0], ["64 MiB", 1.0]]
kernel_floor = "2 us"
head_floor = "500 ns"
step_floor = "150 us"
source = "a data sheet"

[kinds.a.float32]
peak = "1 TFLOP/s"
shares = [["1 MFLOP", 0.1], ["1 GFLOP", 0.5]]

[kinds.a.slower]
"aten::gelu" = 2.5

[[hosts]]
kind = "a"
devices = 4
count = 2

[links.devices]
latency = "1 us"
bandwidth = "10 GB/s"
shared = true
overlaps = false

[links.devices.slower]
all_gather = 1.5

[links.hosts]
latency = "20 us"
bandwidth = "1 Gbit/s"

[overlap]
compute = 1.1
message = 1.5
)";

static Cluster two_hosts() { return cluster_from_toml(kTwoHosts, "two.toml"); }

TEST_CASE("a file says kinds, hosts and links, in units") {
  const Cluster cluster = two_hosts();
  const Kind& kind = cluster.kinds.at("a");
  CHECK(kind.memory == std::int64_t{16} << 30);
  CHECK(kind.bandwidth == Rate{100e9, {{1 << 20, 4.0}, {64 << 20, 1.0}}});
  CHECK(kind.kernel_seconds == 2e-6);
  CHECK(kind.head_seconds == doctest::Approx(5e-7));
  CHECK(kind.step_seconds == doctest::Approx(150e-6));
  CHECK(kind.arithmetic.at(DType::Float32) == Rate{1e12, {{1e6, 0.1}, {1e9, 0.5}}});
  CHECK(kind.slower.at("aten::gelu") == 2.5);
  CHECK(cluster.inside == Link{1e-6, 10e9, true, false, {{sharding::Collective::AllGather, 1.5}}});
  CHECK(cluster.between.latency == doctest::Approx(20e-6));
  CHECK(cluster.between.bandwidth == 1.25e8);
  CHECK(!cluster.between.is_shared);
  CHECK(cluster.between.overlaps);
  CHECK(cluster.overlap == 1.1);
  CHECK(cluster.message_overlap == 1.5);
  CHECK(cluster.size() == 8);
  CHECK(cluster.host_of(3) == 0);
  CHECK(cluster.host_of(4) == 1);
  CHECK(cluster.devices_beside(7) == 4);
  CHECK_THROWS_WITH_AS(static_cast<void>(cluster.host_of(8)), doctest::Contains("the cluster has 8 devices"),
                       Error);
}

TEST_CASE("what is written is the same read back") {
  Cluster cluster = two_hosts();
  CHECK(cluster_from_toml(to_toml(cluster), "x") == cluster);
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const auto number = [&] { return std::exp(std::uniform_real_distribution<double>(-40, 40)(random)); };
    cluster.machine = i % 2 == 0 ? "a \"machine\"" : "";
    Kind& kind = cluster.kinds.at("a");
    kind.bandwidth.peak = number();
    kind.kernel_seconds = number();
    kind.arithmetic[DType::BFloat16] = {number(), {{1, number()}, {2 + number(), number()}}};
    kind.slower.insert_or_assign("shoal::adam", number());
    kind.slower.insert_or_assign("aten::mm", Slower({{1e-6, number()}, {2e-6 + number(), number()}}));
    cluster.inside.slower.insert_or_assign(sharding::Collective::Send,
                                           Slower({{1e-6, number()}, {2e-6 + number(), number()}}));
    cluster.inside.latency = i % 3 == 0 ? 0 : number();
    cluster.between.bandwidth = number();
    REQUIRE(cluster_from_toml(to_toml(cluster), "x") == cluster);
  }
}

TEST_CASE("an op takes as much longer as calls of its size do") {
  const Slower any = 3;
  CHECK(any.seconds(2) == 6);
  const Slower slower({{1, 2}, {3, 4}});
  CHECK(slower.seconds(0.5) == doctest::Approx(1));
  CHECK(slower.seconds(1) == doctest::Approx(2));
  CHECK(slower.seconds(2) == doctest::Approx(7));
  CHECK(slower.seconds(3) == doctest::Approx(12));
  CHECK(slower.seconds(6) == doctest::Approx(24));
}

TEST_CASE("small amounts reach less of the peak, and time never falls") {
  const Rate rate = {1e12, {{1e6, 0.1}, {1e9, 0.5}}};
  CHECK(rate.seconds(0) == 0);
  CHECK(rate.seconds(1e5) == doctest::Approx(1e-6));
  CHECK(rate.seconds(1e6) == doctest::Approx(1e-5));
  CHECK(rate.seconds(1e9) == doctest::Approx(2e-3));
  CHECK(rate.seconds(1e12) == doctest::Approx(2));
  double before = 0;
  for (double amount = 1; amount < 1e13; amount *= 1.3) {
    CHECK(rate.seconds(amount) > before);
    before = rate.seconds(amount);
  }
  CHECK(Rate{1e12, {}}.seconds(1e12) == 1);
}

// The file with the first `what` replaced.
static std::string with(const std::string& what, const std::string& by) {
  std::string text = kTwoHosts;
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), by);
}

TEST_CASE("what a file may not say is refused with line, key and what is wanted") {
  const auto refuses = [](const std::string& text, const char* what) {
    CHECK_THROWS_WITH_AS(cluster_from_toml(text, "two.toml"), doctest::Contains(what), Error);
  };
  refuses(with("\"16 GiB\"", "16"),
          "two.toml:2: kinds.a.memory: has no unit; wanted bytes, as in \"80 GiB\"");
  refuses(with("16 GiB", "16"), "two.toml:2: kinds.a.memory: \"16\" has no unit");
  refuses(with("100 GB/s", "100 GB"), "\"GB\" is no unit of bytes in a time");
  refuses(with("100 GB/s", "-1 GB/s"), "two.toml:3: kinds.a.memory_bandwidth: \"-1 GB/s\" is not above 0");
  refuses(with("100 GB/s", "1e300 TB/s"), "\"1e300 TB/s\" is more than a number holds");
  refuses(with("100 GB/s", "1e-323 bit/s"), "\"1e-323 bit/s\" is not above 0");
  refuses(with("100 GB/s", "0 GB/s"), "is not above 0");
  refuses(with("100 GB/s", "fast"), "is not a number with a unit");
  refuses(with("kernel_floor", "kernel_flor"), "kinds.a: has no kernel_floor");
  refuses(with("source", "sauce"), "two.toml:8: kinds.a.sauce: nothing reads it");
  refuses(with("shares = [[\"1 MFLOP\"", "shares = [[\"2 GFLOP\""), "the amounts do not rise");
  refuses(with("\"aten::gelu\" = 2.5", "\"aten::gelu\" = []"),
          "kinds.a.slower.aten::gelu: is not a list of pairs");
  refuses(with("\"aten::gelu\" = 2.5", "\"aten::gelu\" = [[\"1 us\", 0]]"), "0 times as long is not above 0");
  refuses(with("\"aten::gelu\" = 2.5", "\"aten::gelu\" = [[1, 2]]"), "has no unit; wanted a time");
  refuses(with("devices = 4", "device = 4"), "hosts.0.device: nothing reads it; did you mean \"devices\"?");
  refuses(with("devices = 4", "devices = 0"), "hosts.0.devices: is not a number from 1");
  refuses(with("kind = \"a\"", "kind = \"b\""), "hosts.0.kind: there is no [kinds.b]");
  refuses(with("[links.hosts]", "[links.host]"), "links.host: nothing reads it; did you mean \"hosts\"?");
  refuses(with("shared = true", "shared = 1"), "links.devices.shared: is not true or false");
  refuses(with("count = 2", "count = 1000000"), "hosts.0: with it there are more than 1000000 devices");
  refuses(with("16 GiB", "1e30 GiB"), "kinds.a.memory: \"1e30 GiB\" is more than an exabyte");
  refuses(with("compute = 1.1", "compute = 0.5"), "overlap.compute: is 0.5, not 1 or more");
  refuses(with("message = 1.5", "message = 0.5"), "overlap.message: is 0.5, not 1 or more");
  refuses("[[hosts]]\nkind = \"a\"\n", "there is no [kinds.a]");
  refuses(with("all_gather = 1.5", "allgather = 1.5"),
          "links.devices.slower.allgather: is not one of all_reduce, reduce_scatter, all_gather");
  refuses(with("all_gather = 1.5", "all_gather = 0"), "links.devices.slower.all_gather: is 0, not above 0");
  refuses(with("all_gather = 1.5", "all_gather = [[\"2 us\", 1], [\"1 us\", 1]]"),
          "links.devices.slower.all_gather: the amounts do not rise");
  refuses("[kinds", "two.toml:1: ");
  refuses("", "has no hosts");
  std::string lonely = kTwoHosts;
  lonely.resize(lonely.find("[links.hosts]"));
  refuses(lonely, "there are several hosts, and no [links.hosts]");
}
