// SPDX-License-Identifier: Apache-2.0
#include "shoal/checkpoint/saver.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "shoal/base/crc32c.h"
#include "shoal/base/error.h"
#include "shoal/checkpoint/folder.h"

namespace shoal::checkpoint {

namespace fs = std::filesystem;

static fs::path aside(const fs::path& folder, std::int64_t step, const char* what) {
  return folder / concat(".", name_of_step(step), "-", what, "-", ::getpid());
}

static StoredFile write_file(FileSystem& files, const fs::path& folder, const ImageFile& file,
                             std::span<const std::byte> bytes) {
  StoredFile stored = {.name = file.name, .bytes = file.bytes, .chunks = {}};
  const auto output = files.create(folder / file.name);
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min<std::size_t>(bytes.size(), kChunkBytes));
    stored.chunks.push_back(crc32c(chunk));
    output->write(chunk);
    bytes = bytes.subspan(chunk.size());
  }
  output->sync();
  return stored;
}

void write_checkpoint(FileSystem& files, const fs::path& folder, std::int64_t step, const std::string& state,
                      const ImagePlan& plan, std::span<const std::byte> image) {
  const fs::path partial = aside(folder, step, "partial");
  if (!files.exists(folder)) {
    files.make_folder(folder);
    files.sync_folder(folder.has_parent_path() ? folder.parent_path() : ".");
  }
  files.remove(partial);
  files.make_folder(partial);
  Manifest manifest = {.step = step, .state = state, .tensors = plan.entries, .files = {}};
  for (const ImageFile& file : plan.files)
    manifest.files.push_back(write_file(
        files, partial, file,
        image.subspan(static_cast<std::size_t>(file.begin), static_cast<std::size_t>(file.bytes))));
  {
    const std::string text = to_text(manifest);
    const auto output = files.create(partial / kManifestName);
    output->write(std::as_bytes(std::span(text)));
    output->sync();
  }
  files.sync_folder(partial);
  // A checkpoint of the same step that was there takes the other name, and is tidied away.
  files.rename(partial, folder / name_of_step(step));
  files.sync_folder(folder);
}

void tidy(FileSystem& files, const fs::path& folder, std::int64_t keep) {
  const auto steps = steps_among(files.list(folder));
  for (const std::int64_t step : superseded(steps, keep)) {
    // By its own name a checkpoint is whole at every moment.
    const fs::path removed = aside(folder, step, "removed");
    files.remove(removed);
    files.rename(folder / name_of_step(step), removed);
    files.remove(removed);
  }
  for (const std::string& name : files.list(folder))
    if (is_leftover(name)) files.remove(folder / name);
}

class Saver::State {
 public:
  State(FileSystem& files, fs::path folder, SaverOptions options)
      : files_(files), folder_(std::move(folder)), options_(options) {
    thread_ = std::thread([this] { run(); });
  }
  ~State() {
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.ends = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void reserve(std::span<const TensorBytes> tensors) {
    wait();
    static_cast<void>(staging_.of(plan_image(tensors).bytes));
  }

  void save(std::int64_t step, std::string state, std::span<const TensorBytes> tensors,
            std::future<std::string> ready) {
    wait();
    Job job = {.step = step,
               .state = std::move(state),
               .plan = plan_image(tensors),
               .image = {},
               .ready = std::move(ready)};
    job.image = staging_.of(job.plan.bytes);
    fill_image(job.plan, tensors, job.image, options_.copy_threads);
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.job = std::move(job);
    }
    changed_.notify_all();
  }

  bool is_writing() const {
    const std::lock_guard lock(shared_.mutex);
    return shared_.job.has_value();
  }
  void wait() {
    std::unique_lock lock(shared_.mutex);
    changed_.wait(lock, [&] { return !shared_.job; });
  }
  std::vector<std::string> take_failures() {
    const std::lock_guard lock(shared_.mutex);
    return std::exchange(shared_.failures, {});
  }
  std::int64_t last_step() const {
    const std::lock_guard lock(shared_.mutex);
    return shared_.last_step;
  }

 private:
  struct Job {
    std::int64_t step;
    std::string state;
    ImagePlan plan;
    std::span<std::byte> image;  // of staging_, which nobody touches while there is a job
    std::future<std::string> ready;
  };

  void run() {
    for (;;) {
      Job* job = nullptr;
      {
        std::unique_lock lock(shared_.mutex);
        changed_.wait(lock, [&] { return shared_.job || shared_.ends; });
        if (!shared_.job) return;
        job = &*shared_.job;  // only this thread takes it away
      }
      const auto failure = attempt(*job);
      {
        const std::lock_guard lock(shared_.mutex);
        if (failure)
          shared_.failures.push_back(*failure);
        else
          shared_.last_step = job->step;
        shared_.job.reset();
      }
      changed_.notify_all();
    }
  }

  bool ends() const {
    const std::lock_guard lock(shared_.mutex);
    return shared_.ends;
  }
  void wait_until_ready(Job& job) const {
    constexpr std::chrono::milliseconds kBetweenLooks{20};
    if (!job.ready.valid()) return;
    for (bool is_last = ends(); job.ready.wait_for(kBetweenLooks) != std::future_status::ready;
         is_last = ends())
      SHOAL_CHECK(!is_last, Infeasible, "what it needs beside it was not there when this process ended");
    const std::string why = job.ready.get();
    SHOAL_CHECK(why.empty(), Infeasible, why);
  }

  std::optional<std::string> attempt(Job& job) const {
    std::string why;
    try {
      wait_until_ready(job);
      write_checkpoint(files_, folder_, job.step, job.state, job.plan, job.image);
    } catch (const std::exception& error) {
      why = concat("step ", job.step, " was not saved: ", error.what(),
                   "; the checkpoints before are as they were");
    }
    try {
      // After a failure this frees the room that the attempt took, and nothing else.
      tidy(files_, folder_, why.empty() ? options_.keep_latest_k : 0);
    } catch (const std::exception& error) {
      if (why.empty())
        why = concat("step ", job.step, " is saved, but older checkpoints stay: ", error.what());
    }
    return why.empty() ? std::nullopt : std::optional(why);
  }

  FileSystem& files_;
  fs::path folder_;
  SaverOptions options_;
  Staging staging_;
  struct {
    mutable std::mutex mutex;  // guards the rest
    std::optional<Job> job;    // waiting or being written
    std::vector<std::string> failures;
    std::int64_t last_step = -1;
    bool ends = false;
  } shared_;
  std::condition_variable changed_;
  std::thread thread_;
};

Saver::Saver(FileSystem& files, fs::path folder, SaverOptions options)
    : state_(std::make_unique<State>(files, std::move(folder), options)) {}
Saver::~Saver() = default;

void Saver::reserve(std::span<const TensorBytes> tensors) { state_->reserve(tensors); }
void Saver::save(std::int64_t step, std::string state, std::span<const TensorBytes> tensors,
                 std::future<std::string> ready) {
  state_->save(step, std::move(state), tensors, std::move(ready));
}
bool Saver::is_writing() const { return state_->is_writing(); }
void Saver::wait() { state_->wait(); }
std::vector<std::string> Saver::take_failures() { return state_->take_failures(); }
std::int64_t Saver::last_step() const { return state_->last_step(); }

}  // namespace shoal::checkpoint
