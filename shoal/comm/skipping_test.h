// SPDX-License-Identifier: Apache-2.0
// For tests: a rank that leaves out one of the messages it is to send.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "shoal/comm/call.h"
#include "shoal/comm/located.h"

namespace shoal::comm {

class Skipping final : public RequestCommunicator, public Located {
 public:
  // `left`: how many sends with a tag still come before that one, in this group and in those that are made of it.
  Skipping(std::unique_ptr<Communicator> inner, std::shared_ptr<int> left)
      : inner_(std::move(inner)), left_(std::move(left)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool is_asynchronous() const override { return inner_->is_asynchronous(); }
  std::unique_ptr<Memory> allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  std::unique_ptr<Communicator> subgroup(std::span<const int> ranks) override {
    return std::make_unique<Skipping>(inner_->subgroup(ranks), left_);
  }
  void abort(std::string_view reason, ErrorKind kind) noexcept override { inner_->abort(reason, kind); }
  void in_module(std::string_view module) override {
    if (auto* located = dynamic_cast<Located*>(inner_.get())) located->in_module(module);
  }

 private:
  std::unique_ptr<Work> submit(Request request) override {
    if (request.op == Op::Send && request.tag.message != 0 && (*left_)-- == 0) return done_work();
    return forward(*inner_, request);
  }

  const std::unique_ptr<Communicator> inner_;
  const std::shared_ptr<int> left_;
};

}  // namespace shoal::comm
