// SPDX-License-Identifier: Apache-2.0
// Turns operator calls into nodes of a functional graph.
//
//   tensor of the model or batch ──► source; parameters and buffers by storage, offset and strides
//   what touches no value        ──► computed at once; a constant where a value meets it
//   y.add_(x)                    ──► %2 = add(%y, %x); y now shows %2
//   y[0].add_(x)                 ──► %2 = select(%y, 0); %3 = add(%2, %x); %4 = select_scatter(%y, %3, 0)
//   dropout, x.item()            ──► shoal::bernoulli(seed, step, ordinal); computed and guarded, or an error
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/capture/dispatch.h"
#include "shoal/capture/marks.h"
#include "shoal/capture/random.h"
#include "shoal/capture/recorded_tensor.h"
#include "shoal/capture/shapes.h"

namespace shoal::capture {

class Recorder final : public Interceptor {
 public:
  // Throw, with the user's source line, when that node is recorded; `why` is the message.
  struct Stop {
    std::uint32_t node;
    std::string why;
    std::string remedy;
  };
  explicit Recorder(const Request& request, std::optional<Stop> stop = std::nullopt);

  // What stands for the request's inputs.
  const std::vector<at::Tensor>& inputs() const { return inputs_; }
  // From here on nodes belong to the backward phase.
  void start_backward() { phase_ = ir::Phase::Backward; }
  void add_result(ir::Role role, std::string name, const at::Tensor& tensor);
  // Names modules, adds the buffers that changed as results, and gives everything away.
  Captured finish() &&;

  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack) override;
  bool wants_factory(const c10::OperatorHandle& op) override;
  void made(const at::Tensor& tensor) override;

  // The first call that was refused; the model may have caught it, and gone on elsewhere.
  const std::optional<Error>& refusal() const { return refusal_; }

  // "in or after module h.0.attn": as near as the parameters read so far tell; for messages.
  std::string where_in_module() const;
  // The same with the user's source line; only while an operator is being called.
  std::string where() const;

 private:
  // What is known of an operator from its schema.
  struct OpInfo {
    enum class Kind { Functional, View, Write, Reads, InPlaceView };
    Kind kind = Kind::Functional;
    std::string name;
    std::optional<c10::OperatorHandle> functional;  // of a Write
    std::vector<std::size_t> written;               // argument positions
    bool dynamic_shape = false;
    bool is_random = false;  // as far as its schema says
  };
  struct Region {  // memory of a real tensor that stands for a value
    std::shared_ptr<Alias> alias;
    at::Tensor tensor;        // the whole; keeps the storage alive, so that its address means it
    std::int64_t begin, end;  // bytes in the storage
    ir::Role role;
    std::string name;
  };
  class NodeDraws;
  using Outputs = std::vector<std::optional<ir::ValueId>>;

  const OpInfo& info_of(const c10::OperatorHandle& op);

  // Which tensors are values.
  bool touches_value(const at::Tensor& tensor) const;
  const Region* region_of(const at::Tensor& tensor) const;
  View view_of_region(const Region& region, const at::Tensor& tensor);
  void promote(const at::Tensor& tensor);
  void check_write(const at::Tensor& tensor) const;
  void add_region(const at::Tensor& tensor, ir::Role role, const std::string& name, ir::ValueId value);
  ir::ValueId constant(const at::Tensor& tensor);
  void keep_constants_of(const at::Tensor& about_to_change);

  // Reading and writing.
  ir::ValueId value_of(const at::Tensor& tensor);
  ir::ValueId read(View& view);
  void write(View& view, ir::ValueId value);
  ir::ValueId conformed(ir::ValueId value, ir::ValueId old);
  ir::Attribute attribute(const c10::IValue& value, const c10::Argument& argument);
  std::vector<ir::Argument> arguments_of(const c10::FunctionSchema& schema, const torch::jit::Stack& in);

  // Making nodes.
  std::vector<at::Tensor> metas_of(const c10::OperatorHandle& op, const std::vector<ir::Argument>& arguments,
                                   c10::Device device);
  Outputs emit(const c10::OperatorHandle& op, std::vector<ir::Argument> arguments, c10::Device device);
  void tell_progress();
  Outputs add_node(std::string op, std::vector<ir::Argument> arguments, const std::vector<at::Tensor>& metas,
                   c10::Device device, bool random);
  ir::ValueId emit_one(const char* op, std::vector<ir::Argument> arguments);
  ir::ValueId inverse(const ViewStep& step, ir::ValueId whole, ir::ValueId part);
  at::Tensor wrap(ir::ValueId value);
  at::Tensor wrap_view(View view, ir::ValueId value);
  ir::ValueId scalar(const char* name);

  // Kinds of call.
  void record_call(const OpInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void compute(const OpInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record(const OpInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record_view(const OpInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record_in_place_view(const OpInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record_write(const OpInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record_random(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record_read(const OpInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record_selection(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record_sparse(const OpInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  std::optional<bool> certain(ir::ValueId condition) const;
  std::optional<bool> check(const OpInfo& info, const torch::jit::Stack& in);
  std::optional<bool> expected_of(ir::ValueId condition) const;
  void require_expectations();
  std::optional<ir::ValueId> running_average(std::vector<ir::Argument>& arguments);
  ir::ValueId averaged(ir::ValueId before, ir::ValueId now, ir::ValueId count);
  void push_results(const c10::OperatorHandle& op, const Outputs& outputs, torch::jit::Stack& stack);
  // Sparse matrices: recorder_sparse.cpp.
  struct Matrix {
    ir::ValueId indices, values;  // COO
    std::int64_t rows, columns;
  };
  static bool is_of_sparse(const OpInfo& info, c10::ArrayRef<c10::IValue> in);
  Matrix matrix_of(const at::Tensor& sparse, const std::string& op);
  Matrix transposed(const Matrix& matrix);
  ir::ValueId product(const Matrix& matrix, ir::ValueId dense);
  ir::ValueId sparse_product(const at::Tensor& left, const at::Tensor& right, const std::string& op);
  ir::ValueId sparse_addmm(const torch::jit::Stack& in, const std::string& op);
  ir::ValueId dense_of(const Matrix& matrix);
  at::Tensor evaluate(ir::ValueId value, const std::string& op);
  void mask_to_positions(torch::jit::Stack& stack);
  static std::vector<std::size_t> written_by(const OpInfo& info, c10::ArrayRef<c10::IValue> in);
  static bool depends_on_data(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> in);
  [[noreturn]] void untraceable(const std::string& what, const std::string& remedy) const;

  const Request& request_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::nanoseconds patience_ = request_.patience;  // until progress is told
  std::optional<Stop> stop_;
  std::optional<Error> refusal_;
  std::uint64_t id_;
  ir::Phase phase_ = ir::Phase::Forward;
  Captured captured_;
  std::vector<at::Tensor> inputs_;
  std::vector<std::shared_ptr<Alias>> input_aliases_;  // of the memory that each input shows

  // By ValueId.
  std::vector<at::Tensor> metas_;
  std::vector<c10::Device> devices_;
  std::vector<bool> from_inputs_;  // depends on inputs and constants alone
  // By NodeId: autograd's sequence number of the node's forward operator.
  std::vector<std::uint64_t> sequence_;

  std::unordered_map<const c10::StorageImpl*, std::vector<Region>> regions_;
  struct HeldConstant {
    ir::ValueId value;
    std::size_t index;  // in captured_.constants
  };
  std::unordered_map<const c10::StorageImpl*, std::vector<HeldConstant>> constants_;
  // Memory that came into being while the model ran. The weak pointers keep an address from being used again.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> own_;
  std::unordered_map<std::string, OpInfo> infos_;
  std::map<std::string, ir::ValueId> scalars_;
  Ordinals ordinals_;
  // Conditions that were taken for granted; the loss is made to depend on them.
  struct Expectation {
    ir::ValueId condition;
    bool expected;
    std::string otherwise;  // the message
  };
  std::vector<Expectation> expectations_;
  std::map<double, ir::ValueId> counts_;  // of batches, by the momentum that stands for one over it
  Marks marks_;
  std::string last_module_;  // owner of the parameter read last
  ShapeInference shapes_;
};

}  // namespace shoal::capture
