// SPDX-License-Identifier: Apache-2.0
// The store's keys, of epoch 0:
//
//   servers/asked       how many were asked for
//   servers/more/K      the K-th is wanted
//   servers/started/K   its number
#include "shoal/elastic/job_file.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"

namespace shoal::elastic {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""h;

static constexpr const char* kHasGone =
    ". Remedy: the job.dump_folder of a shoal train with ps.servers that runs, or the --job-folder of a "
    "shoal run "
    "with --servers";

fs::path job_file_in(const fs::path& folder) { return folder / "running.json"; }

void write_job_file(const fs::path& folder, const RunningJob& job) {
  const json written = {{"launcher", job.launcher},
                        {"address", job.address},
                        {"port", job.port},
                        {"epoch", job.epoch},
                        {"key", job.key.bytes}};
  const std::string text = written.dump() + "\n";
  if (const std::error_code error = make_folders(folder))
    fail(ErrorKind::InvalidInput, "run: cannot make the folder ", folder.string(), ": ", error.message());
  const fs::path path = job_file_in(folder), part = concat(path.string(), ".", job.launcher);
  std::error_code ignored;
  fs::remove(part, ignored);
  const int file = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool is_written =
      file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (file >= 0) close(file);
  SHOAL_CHECK(is_written && rename(part.c_str(), path.c_str()) == 0, InvalidInput, "run: cannot write ",
              path.string(), ": ", std::strerror(error));
}

void remove_job_file(const fs::path& folder) {
  std::error_code ignored;
  fs::remove(job_file_in(folder), ignored);
}

RunningJob read_job_file(const fs::path& folder) {
  const fs::path path = job_file_in(folder);
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  SHOAL_CHECK(file >= 0, InvalidInput, "ps: no job runs in ", folder.string(), ": ", path.string(), ": ",
              std::strerror(errno), kHasGone);
  struct stat status = {};
  std::array<char, 4096> bytes;
  const ssize_t got = fstat(file, &status) == 0 ? read(file, bytes.data(), bytes.size()) : -1;
  close(file);
  SHOAL_CHECK((status.st_mode & 077) == 0, InvalidInput, "ps: ", path.string(),
              " may be read by others, and it has the job's key. Remedy: chmod 600");
  const json read = json::parse(
      std::string_view(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))), nullptr, false);
  try {
    RunningJob job;
    read.at("launcher").get_to(job.launcher);
    read.at("address").get_to(job.address);
    read.at("port").get_to(job.port);
    read.at("epoch").get_to(job.epoch);
    read.at("key").get_to(job.key.bytes);
    return job;
  } catch (const json::exception&) {
    fail(ErrorKind::InvalidInput, "ps: ", path.string(), " says of no job where it is", kHasGone);
  }
}

std::unique_ptr<rendezvous::TcpStore> store_of(const RunningJob& job, std::uint64_t epoch) {
  try {
    auto store = std::make_unique<rendezvous::TcpStore>(
        job.key,
        rendezvous::TcpStoreOptions{.address = job.address, .port = job.port, .epoch = epoch, .limit = 1s});
    store->num_keys();
    return store;
  } catch (const Error& error) {
    fail(ErrorKind::InvalidInput, "ps: the job of process ", job.launcher, ", whose store was at ",
         job.address, ":", job.port, ", runs no more (", error.what(), ")", kHasGone);
  }
}

int ask_for_server(const RunningJob& job) {
  const auto store = store_of(job, 0);
  const std::int64_t number = store->add("servers/asked", 1);
  store->set(concat("servers/more/", number), "1");
  return std::stoi(store->get(concat("servers/started/", number), 10s));
}

MoreServers::MoreServers(const RunningJob& job)
    : waits_(store_of(job, 0)), tells_(store_of(job, 0)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  SHOAL_CHECK(event_ >= 0, Infeasible, "run: no more descriptors: ", std::strerror(errno));
  waiter_ = std::thread([this] {
    for (std::int64_t next = 1;;) try {
        waits_->get(concat("servers/more/", next), 1h);
        wanted_ = next++;
        eventfd_write(event_, 1);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::Timeout) return;  // the job ends
      }
  });
}

MoreServers::~MoreServers() {
  waits_->close();
  waiter_.join();
  close(event_);
}

bool MoreServers::take() {
  eventfd_t ignored = 0;
  eventfd_read(event_, &ignored);
  if (taken_ == wanted_) return false;
  ++taken_;
  return true;
}

void MoreServers::told(int server) {
  tells_->set(concat("servers/started/", taken_), std::to_string(server));
}

}  // namespace shoal::elastic
