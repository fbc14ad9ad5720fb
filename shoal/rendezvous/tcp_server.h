// SPDX-License-Identifier: Apache-2.0
// The job's store for processes of several hosts: a key-value service that talks only to who has the job's
// key. What is said is in wire.h.
//
// Every key belongs to an epoch. Epoch 0 is the job's; each start of the ranks has one of its own, from 1.
// When the next one begins, the keys of the last one are gone and who still asks for it is refused: a rank
// that outlived its epoch cannot disturb the next one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/rendezvous/key.h"

namespace shoal::rendezvous {

// The IPv4 address of a network interface: "lo" is 127.0.0.1. Throws InvalidInput, naming those there are.
std::string address_of(const std::string& interface);

struct TcpServerOptions {
  std::string address = "127.0.0.1";  // of one interface; every interface (0.0.0.0) is refused
  std::uint16_t port = 0;             // 0: a free one
};

class TcpServer {
 public:
  // Serves on a thread of its own. Throws InvalidInput where the port is taken or the address not of here.
  explicit TcpServer(const Key& key, const TcpServerOptions& options = {});
  TcpServer(const TcpServer&) = delete;
  TcpServer& operator=(const TcpServer&) = delete;
  ~TcpServer();

  const std::string& address() const;
  std::uint16_t port() const;
  void begin_epoch(std::uint64_t epoch);  // any thread
  std::int64_t num_refused() const;       // connections without the key, so far; any thread

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace shoal::rendezvous
