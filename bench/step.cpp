// SPDX-License-Identifier: Apache-2.0
// Times one training step: Shoal, LibTorch eager with torch::optim, and PyTorch eager in a process of its
// own.
//
//   bench/step [SHAPE …] [--rounds=30] [--shapes=bench/shapes.toml] [--python=.venv/bin/python] [--profile]
//              [--device=cuda]       on a GPU, without PyTorch; live bytes are the processor's
//
// The three take turns, so that what else the machine does strikes all of them: each round gives one ratio,
// and the median of the ratios is reported with its 95 % interval (order statistics of the binomial
// distribution).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <unistd.h>

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/models.h"
#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/runtime/allocator.h"
#include "shoal/train/trainer.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
  std::string name;
  nlohmann::json json;  // as the table of shapes.toml, for the other process too

  std::int64_t number(const char* key) const { return json.at(key).get<std::int64_t>(); }
  bool is(const char* key, const char* value) const { return json.at(key) == value; }
};

struct Task {
  at::Tensor x, y;
};

std::vector<Shape> shapes_in(const std::string& path) {
  std::vector<Shape> shapes;
  for (const auto& [name, table] : toml::parse_file(path)) {
    std::ostringstream json;
    json << toml::json_formatter(*table.as_table());
    shapes.push_back({std::string(name.str()), nlohmann::json::parse(json.str())});
  }
  return shapes;
}

models::Config config_of(const Shape& shape) {
  if (shape.is("model", "gpt2"))
    return models::Gpt2Config{.vocab_size = shape.number("vocabulary"),
                              .n_positions = shape.number("sequence"),
                              .n_embd = shape.number("width"),
                              .n_layer = shape.number("layers"),
                              .n_head = shape.number("heads"),
                              .embd_pdrop = 0,
                              .attn_pdrop = 0,
                              .resid_pdrop = 0};
  return models::ResnetConfig{.layers = shape.json.at("layers").get<std::vector<std::int64_t>>(),
                              .width = shape.number("width"),
                              .num_classes = shape.number("classes")};
}

Task task_of(const Shape& shape) {
  const std::int64_t batch = shape.number("batch");
  if (shape.is("model", "gpt2")) {
    const std::array<std::int64_t, 2> size = {batch, shape.number("sequence")};
    return {at::randint(shape.number("vocabulary"), size, at::kLong),
            at::randint(shape.number("vocabulary"), size, at::kLong)};
  }
  const std::int64_t side = shape.number("image");
  return {at::randn({batch, 3, side, side}), at::randint(shape.number("classes"), {batch}, at::kLong)};
}

at::Tensor loss_of(torch::nn::AnyModule& model, const at::Tensor& x, const at::Tensor& y) {
  return at::cross_entropy_loss(model.forward(x).flatten(0, -2), y.flatten());
}

std::shared_ptr<torch::nn::AnyModule> model_of(const Shape& shape, at::Device device) {
  torch::manual_seed(1);
  auto model = std::make_shared<torch::nn::AnyModule>(models::make(config_of(shape)));
  model->ptr()->to(device);
  return model;
}

// What is timed: takes a number of steps, and says how many seconds they took.
struct Runner {
  std::string name;
  std::function<double(std::int64_t steps)> run;
  std::vector<double> seconds = {};  // a step, of each round
  std::int64_t own_bytes = 0;        // live bytes that are this runner's
  std::int64_t peak_bytes = 0;       // the most it had at any time
};

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Runs and books the memory that came and stayed.
double measured(Runner& runner, std::int64_t steps) {
  const auto before = shoal::runtime::memory_counts().live_bytes;
  shoal::runtime::reset_peak();
  const double seconds = runner.run(steps) / static_cast<double>(steps);
  const auto after = shoal::runtime::memory_counts();
  runner.peak_bytes = std::max(runner.peak_bytes, after.peak_bytes - before + runner.own_bytes);
  runner.own_bytes += after.live_bytes - before;
  return seconds;
}

Runner shoal_runner(const Shape& shape, const Task& task, double* last_loss, shoal::observe::Trace* trace) {
  const auto model = model_of(shape, task.x.device());
  const auto loss = [model](const shoal::Batch& batch) { return loss_of(*model, batch[0], batch[1]); };
  const shoal::Optimizer optimizer = shape.is("optimizer", "sgd")
                                         ? shoal::Optimizer(shoal::SGD{.lr = 1e-3, .momentum = 0.9})
                                         : shoal::Optimizer(shoal::AdamW{.lr = 1e-3});
  auto trainer =
      std::make_shared<shoal::Trainer>(model->ptr(), loss, optimizer, shoal::TrainerOptions{.trace = trace});
  return {"shoal", [=](std::int64_t steps) {
            return seconds_of([&] {
              for (std::int64_t i = 0; i < steps; ++i)
                *last_loss = trainer->step(shoal::Batch{task.x, task.y}).loss;
            });
          }};
}

Runner libtorch_runner(const Shape& shape, const Task& task, double* last_loss) {
  const auto model = model_of(shape, task.x.device());
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  if (shape.is("optimizer", "sgd"))
    optimizer = std::make_shared<torch::optim::SGD>(model->ptr()->parameters(),
                                                    torch::optim::SGDOptions(1e-3).momentum(0.9));
  else
    optimizer =
        std::make_shared<torch::optim::AdamW>(model->ptr()->parameters(), torch::optim::AdamWOptions(1e-3));
  return {"libtorch", [=](std::int64_t steps) {
            return seconds_of([&] {
              for (std::int64_t i = 0; i < steps; ++i) {
                optimizer->zero_grad();
                const auto loss = loss_of(*model, task.x, task.y);
                loss.backward();
                optimizer->step();
                *last_loss = loss.item<double>();
              }
            });
          }};
}

// A child process with pipes to and from it, which ends with this object.
class Peer {
 public:
  Peer(const std::string& python, const Shape& shape) {
    int to[2];
    int from[2];
    if (pipe(to) != 0 || pipe(from) != 0) shoal::fail(shoal::ErrorKind::Infeasible, "bench: no pipe");
    if (fork() == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      for (const int end : {to[0], to[1], from[0], from[1]}) close(end);
      execl(python.c_str(), python.c_str(), "bench/step_torch.py", nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    out_ = fdopen(to[1], "w");
    in_ = fdopen(from[0], "r");
    ask(shape.json.dump());
  }
  ~Peer() {
    std::fclose(out_);
    std::fclose(in_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  std::string ask(const std::string& line) {
    std::fputs((line + "\n").c_str(), out_);
    std::fflush(out_);
    std::array<char, 256> answer{};
    if (std::fgets(answer.data(), answer.size(), in_) == nullptr)
      shoal::fail(shoal::ErrorKind::InvalidInput,
                  "bench: bench/step_torch.py ended; run it from the root of the tree, ",
                  "with a Python that has torch (--python=PATH)");
    return answer.data();
  }

 private:
  FILE* out_;
  FILE* in_;
};

Runner pytorch_runner(const std::string& python, const Shape& shape) {
  auto peer = std::make_shared<Peer>(python, shape);
  return {"pytorch", [peer](std::int64_t steps) { return std::stod(peer->ask(std::to_string(steps))); }};
}

struct Interval {
  double median, low, high;
};

// Of the median, at 95 %: the order statistics n/2 ∓ 0.98 √n.
Interval median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  const auto at = [&](double rank) {
    return values[static_cast<std::size_t>(std::clamp(rank, 0.0, count - 1))];
  };
  return {at((count - 1) / 2), at(std::floor(count / 2 - 0.98 * std::sqrt(count))),
          at(std::ceil(count / 2 + 0.98 * std::sqrt(count)) - 1)};
}

Interval ratio_of(const Runner& a, const Runner& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.seconds.size(); ++i) ratios.push_back(a.seconds[i] / b.seconds[i]);
  return median_of(std::move(ratios));
}

// Where Shoal's time goes: all instructions of the rounds, by op, the largest share first.
void print_profile(const shoal::observe::Trace& trace) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> by_op;  // nanoseconds, calls
  std::int64_t total = 0;
  for (const auto& event : trace.events) {
    if (event.stream != "compute") continue;
    auto& [nanoseconds, calls] = by_op[event.name];
    nanoseconds += event.end - event.begin;
    ++calls;
    total += event.end - event.begin;
  }
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [op, sums] : by_op) order.emplace_back(-sums.first, op);
  std::ranges::sort(order);
  for (const auto& [nanoseconds, op] : order)
    std::printf("  %5.1f %%  %8.2f us x %7lld  %s\n",
                -100.0 * static_cast<double>(nanoseconds) / static_cast<double>(total),
                -1e-3 * static_cast<double>(nanoseconds) / static_cast<double>(by_op[op].second),
                static_cast<long long>(by_op[op].second), op.c_str());
}

void bench(const Shape& shape, int rounds, const std::string& python, bool profile, at::Device device) {
  at::set_num_threads(static_cast<int>(shape.number("threads")));
  torch::manual_seed(0);
  Task task = task_of(shape);
  task = {task.x.to(device), task.y.to(device)};
  const std::int64_t steps = shape.number("steps");
  double loss[2] = {};
  std::vector<Runner> runners;
  std::int64_t before = shoal::runtime::memory_counts().live_bytes;
  const auto add = [&](Runner runner) {
    runner.own_bytes = shoal::runtime::memory_counts().live_bytes - before;
    runners.push_back(std::move(runner));
    measured(runners.back(), 3);  // warm-up: capture, first touch of memory
    runners.back().peak_bytes = 0;
    before = shoal::runtime::memory_counts().live_bytes;
  };
  shoal::observe::Trace trace;
  add(shoal_runner(shape, task, &loss[0], profile ? &trace : nullptr));
  add(libtorch_runner(shape, task, &loss[1]));
  // Same parameters, same batch, same steps: the two must have learned the same. Here, as after some hundred steps
  // rounding alone is a loss of its own.
  SHOAL_CHECK(std::abs(loss[0] - loss[1]) <= 0.002 * std::abs(loss[1]) + 1e-3, Internal,
              "bench: ", shape.name, ": the loss is ", loss[0], " with Shoal and ", loss[1],
              " with LibTorch");
  if (!python.empty() && device.is_cpu()) add(pytorch_runner(python, shape));
  // A B C, A C B, A B C, …: each follows each of the others equally often. Whoever follows PyTorch finds a
  // core that the other process's idle threads still spin on.
  for (int round = 0; round < rounds; ++round)
    for (std::size_t turn = 0; turn < runners.size(); ++turn) {
      Runner& runner = runners[round % 2 == 0 || turn == 0 ? turn : runners.size() - turn];
      runner.seconds.push_back(measured(runner, steps));
    }
  for (const Runner& runner : runners) {
    const auto milliseconds = median_of(runner.seconds).median * 1e3;
    std::printf("%-10s %-9s %10.3f ms   ", shape.name.c_str(), runner.name.c_str(), milliseconds);
    if (const auto ratio = ratio_of(runners[0], runner); &runner != &runners[0])
      std::printf("%6.3f [%.3f, %.3f]", ratio.median, ratio.low, ratio.high);
    else
      std::printf("%21s", "");
    if (runner.name == "pytorch")
      std::printf("\n");
    else
      std::printf("   %10s   %.4f\n", shoal::human_bytes(runner.peak_bytes).c_str(),
                  static_cast<double>(runners[0].peak_bytes) / static_cast<double>(runner.peak_bytes));
  }
  if (profile) print_profile(trace);
  std::fflush(stdout);
}

std::string first_line_of(const char* command) {
  std::array<char, 256> line{};
  FILE* pipe = popen(command, "r");
  if (pipe == nullptr) return "?";
  const bool read = std::fgets(line.data(), line.size(), pipe) != nullptr;
  pclose(pipe);
  std::string text = read ? line.data() : "?";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string path = "bench/shapes.toml";
    std::string python = ".venv/bin/python";
    int rounds = 30;
    bool profile = false;
    at::Device device = at::kCPU;
    std::vector<std::string> wanted;
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      const auto value = argument.substr(argument.find('=') + 1);
      if (argument.starts_with("--rounds="))
        rounds = std::stoi(value);
      else if (argument.starts_with("--shapes="))
        path = value;
      else if (argument.starts_with("--python="))
        python = value;  // empty: without PyTorch
      else if (argument.starts_with("--device="))
        device = at::Device(value);
      else if (argument == "--profile")
        profile = true;
      else
        wanted.push_back(argument);
    }
    shoal::runtime::install_allocator();
    std::printf(
        "commit %s, %s, %d rounds; ratio: Shoal's time over the other's, median and 95 %% interval; peak: "
        "live bytes\n",
        first_line_of("git rev-parse --short HEAD 2>/dev/null").c_str(),
        first_line_of("sed -n 's/^model name.*: //p' /proc/cpuinfo").c_str(), rounds);
    for (const Shape& shape : shapes_in(path))
      if (wanted.empty() ? device.is_cuda() || !shape.json.contains("only")
                         : std::ranges::find(wanted, shape.name) != wanted.end())
        bench(shape, rounds, python, profile, device);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
