#include "dist_group.h"

#include <ATen/ops/cat.h>

#include <numeric>
#include <utility>

#include "host_ops.h"
#include "python_values.h"
#include "record.h"

namespace tpu_shim {

namespace {

using c10::intrusive_ptr;
using c10d::OpType;
using Tensors = std::vector<at::Tensor>;

// --- records ---

// Reads the operands behind the ticket, and runs the call that the ticket stands for.
class CollectiveForm final : public HostForm {
 public:
  void run(const HostRecord& record, HostResults* results) const override {
    const Ticket ticket = get_ticket(record.scalar(0).toLong());
    Collective& call = *ticket.call;
    Tensors inputs;
    for (int k = 1; k < record.operand_count(); ++k) inputs.push_back(own(record, k, call));
    Tensors outputs = ticket.transport->run(call, std::move(inputs));
    for (at::Tensor& output : outputs) results->push_back(std::move(output));
    if (outputs.empty()) results->push_back(record.empty_result(0));  // only a sign of its end
  }

 private:
  // Memory that stays as long as the tensor: Gloo may still use it after a wait was given up.
  static at::Tensor own(const HostRecord& record, int k, const Collective& call) {
    const bool in_place =
        call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduce;
    if (in_place && call.kind == CollectiveKind::kAllReduce)
      return record.writable(k, record.result_id(k - 1));
    const at::Tensor tensor = record.tensor(k).contiguous();
    return record.is_kept(k) && !in_place ? tensor : tensor.clone();
  }
};

// A tensor that is all of its storage can be given another value; others are written through.
bool is_whole(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         impl->unsafe_storage().nbytes() == tensor.nbytes() && !is_lazy(tensor) &&
         locate(tensor).shift == 0;
}

void check_tensors(const Tensors& tensors, const char* what) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.defined() && is_tpu(tensor), what,
                ": tensors must be on the tpu device, not ",
                tensor.defined() ? tensor.device().str() : "undefined");
    TORCH_CHECK(tensor.layout() == c10::kStrided, what, ": tensors must be dense");
  }
}

// Whoever called it reads more than tensors: that everybody is here, or who sent the message.
bool is_for_host(const Collective& call) {
  return call.kind == CollectiveKind::kBarrier ||
         (call.kind == CollectiveKind::kRecv && call.root < 0);
}

void check_one(const Tensors& tensors, const char* what) {
  TORCH_CHECK(tensors.size() == 1, what, ": takes one tensor per process, not ", tensors.size());
}

void check_alike(const Tensors& tensors, const at::Tensor& model, const char* what) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.scalar_type() == model.scalar_type(), what,
                ": all tensors must have the same dtype, not ", tensor.scalar_type(), " and ",
                model.scalar_type());
  }
}

double premul_factor(const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return 1;
  const auto* supplement = dynamic_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK(supplement != nullptr, "ReduceOp.PREMUL_SUM needs a factor");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item().toDouble()
                                             : supplement->double_factor;
}

void set_reduction(Collective* call, const c10d::ReduceOp& op, const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) check_reduction(op, tensor.scalar_type());
  call->op.op_ = op.op_;  // and not what it may hold of Python's
  call->factor = premul_factor(op);
}

std::string with_reduction(const char* name, const c10d::ReduceOp& op) {
  return std::string(name) + "(" + reduction_name(op.op_) + ")";
}
std::string with_root(const char* name, int64_t root) {
  return std::string(name) + "(root " + std::to_string(root) + ")";
}

int64_t total(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

// What a list of works is: it ends with the last of them.
class WorkOfAll final : public Work {
 public:
  explicit WorkOfAll(std::vector<intrusive_ptr<Work>> works)
      : Work(-1, OpType::COALESCED), works_(std::move(works)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) work->wait(timeout);
    return true;
  }
  bool isCompleted() override {
    for (const auto& work : works_) {
      if (!work->isCompleted()) return false;
    }
    return true;
  }
  bool isSuccess() const override {
    for (const auto& work : works_) {
      if (!work->isSuccess()) return false;
    }
    return true;
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (auto error = work->exception()) return error;
    }
    return nullptr;
  }
  Tensors result() override {
    Tensors all;
    for (const auto& work : works_) {
      for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
    }
    return all;
  }
  void synchronize() override {}
  intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(result()));
    return future;
  }

 private:
  const std::vector<intrusive_ptr<Work>> works_;
};

}  // namespace

std::unique_ptr<HostForm> make_collective_form(const tpu_record_t& record) {
  static const tpu_op_t row = op_row("collective");
  return record.op == row ? std::make_unique<CollectiveForm>() : nullptr;
}

// --- works ---

void CallEnd::land(const std::string* error, int source_rank, uint64_t its_job) {
  const std::lock_guard<std::mutex> lock(mutex);
  source = source_rank;
  job = its_job;
  if (error != nullptr) {
    const c10::SourceLocation here = {__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
    exception = std::make_exception_ptr(c10::DistBackendError(here, *error));
  }
  completed = true;
  landed.notify_all();
}

bool WorkTpu::isCompleted() {
  const std::lock_guard<std::mutex> lock(end_->mutex);
  return end_->completed;
}

bool WorkTpu::isSuccess() const {
  const std::lock_guard<std::mutex> lock(end_->mutex);
  return end_->completed && !end_->exception;
}

std::exception_ptr WorkTpu::exception() const {
  const std::lock_guard<std::mutex> lock(end_->mutex);
  return end_->exception;
}

bool WorkTpu::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(end_->mutex);
  const auto completed = [this] { return end_->completed; };
  if (timeout != kNoTimeout) {
    const bool in_time = end_->landed.wait_for(lock, timeout, completed);
    TORCH_CHECK_WITH(DistBackendError, in_time, "the collective did not end within ",
                     timeout.count(), " ms; it goes on");
  } else if (for_host_) {
    end_->landed.wait(lock, completed);
  }
  if (!end_->exception) return true;
  lock.unlock();
  tpu_engine_told(engine(), end_->job);
  std::rethrow_exception(end_->exception);
}

intrusive_ptr<c10::ivalue::Future> WorkTpu::getFuture() {
  // Complete at once: what reads the tensors waits for them, as on a stream.
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(outputs_));
  return future;
}

int WorkTpu::sourceRank() const {
  const std::lock_guard<std::mutex> lock(end_->mutex);
  return end_->source;
}

// --- life ---

ProcessGroupTpu::ProcessGroupTpu(intrusive_ptr<Backend> gloo, int rank, int size,
                                 std::chrono::milliseconds timeout)
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>("tpu_dist", timeout)),
      transport_(new Transport(std::move(gloo), rank, size)) {
  init();
}

ProcessGroupTpu::~ProcessGroupTpu() {
  // What is under way still uses the transport, and may wait for others for long: it stays then.
  if (!transport_->idle()) {
    transport_->close();
    return;
  }
  // Channels' threads may release Python objects as they end.
  if (PyGILState_Check() != 0) {
    without_gil([this] { delete transport_; });
  } else {
    delete transport_;
  }
}

void ProcessGroupTpu::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  transport_->set_name(uid);
}

void ProcessGroupTpu::shutdown() { transport_->wait_idle(); }

c10d::ErrorType ProcessGroupTpu::getError() {
  try {
    transport_->check_alive();
    return c10d::ErrorType::SUCCESS;
  } catch (const c10::Error&) {
    return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupTpu::startCoalescing() {
  coalesces_ = true;
  coalesced_.clear();
}

intrusive_ptr<Work> ProcessGroupTpu::endCoalescing() {
  coalesces_ = false;
  return c10::make_intrusive<WorkOfAll>(std::exchange(coalesced_, {}));
}

// --- calls ---

std::shared_ptr<Collective> ProcessGroupTpu::describe(CollectiveKind kind, std::string name,
                                                      const Tensors& tensors,
                                                      std::chrono::milliseconds timeout) {
  auto call = std::make_shared<Collective>();
  call->kind = kind;
  call->timeout = timeout > kNoTimeout ? timeout : options_->timeout;
  call->text = std::move(name);
  for (size_t i = 0; i < tensors.size(); ++i) {
    call->text += (i == 0 ? " of " : ", ") + describe_tensor(tensors[i]);
  }
  return call;
}

intrusive_ptr<Work> ProcessGroupTpu::launch(std::shared_ptr<Collective> call, OpType type,
                                            const Tensors& inputs, const Tensors& outputs,
                                            Tensors results) {
  static const tpu_op_t row = op_row("collective");
  check_tensors(inputs, call->text.c_str());
  check_tensors(outputs, call->text.c_str());
  transport_->check_alive();
  for (const at::Tensor& output : outputs) {
    call->outputs.push_back({output.sizes().vec(), output.scalar_type()});
  }
  if (call->kind != CollectiveKind::kSend && call->kind != CollectiveKind::kRecv)
    call->sequence = transport_->next_sequence();
  auto work = c10::make_intrusive<WorkTpu>(getRank(), type, std::move(results), is_for_host(*call));
  Call record(row, TPU_CALL_OUT);
  tpu_channel_t* channel = transport_->channel(*call);
  const int64_t ticket =
      add_ticket({call, transport_,
                  [end = work->end(), source = call.get()](const std::string* error, uint64_t job) {
                    end->land(error, source->source, job);
                  }});
  transport_->begin();
  try {
    record.integer(ticket).on(channel);
    for (const at::Tensor& input : inputs) record.tensor(input);
    for (const at::Tensor& output : outputs) {
      is_whole(output) ? record.written(output)
                       : record.result(contiguous_meta(output.sizes(), output.scalar_type()));
    }
    if (outputs.empty()) record.result(contiguous_meta({1}, at::kByte));
    record.record();
  } catch (...) {
    drop_ticket(ticket);
    transport_->end();
    throw;
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!is_whole(outputs[k])) copy_on_device(record.take(k), outputs[k]);
  }
  if (coalesces_) coalesced_.push_back(work);
  return work;
}

intrusive_ptr<Work> ProcessGroupTpu::broadcast(Tensors& tensors,
                                               const c10d::BroadcastOptions& options) {
  check_one(tensors, "broadcast");
  auto call = describe(CollectiveKind::kBroadcast, with_root("broadcast", options.rootRank),
                       tensors, options.timeout);
  call->root = static_cast<int>(options.rootRank);
  call->small_bytes = static_cast<int64_t>(tensors[0].nbytes());
  const bool is_root = call->root == getRank();
  return launch(std::move(call), OpType::BROADCAST, is_root ? tensors : Tensors(),
                is_root ? Tensors() : tensors, tensors);
}

intrusive_ptr<Work> ProcessGroupTpu::allreduce(Tensors& tensors,
                                               const c10d::AllreduceOptions& options) {
  check_one(tensors, "all_reduce");
  auto call = describe(CollectiveKind::kAllReduce, with_reduction("all_reduce", options.reduceOp),
                       tensors, options.timeout);
  set_reduction(call.get(), options.reduceOp, tensors);
  call->small_bytes = static_cast<int64_t>(tensors[0].nbytes());
  return launch(std::move(call), OpType::ALLREDUCE, tensors, tensors, tensors);
}

intrusive_ptr<Work> ProcessGroupTpu::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  auto call =
      describe(CollectiveKind::kAllReduce, with_reduction("all_reduce_coalesced", options.reduceOp),
               tensors, options.timeout);
  set_reduction(call.get(), options.reduceOp, tensors);
  return launch(std::move(call), OpType::ALLREDUCE_COALESCED, tensors, tensors, tensors);
}

intrusive_ptr<Work> ProcessGroupTpu::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_one(tensors, "reduce");
  auto call = describe(
      CollectiveKind::kReduce,
      with_reduction("reduce", options.reduceOp) + " to rank " + std::to_string(options.rootRank),
      tensors, options.timeout);
  set_reduction(call.get(), options.reduceOp, tensors);
  call->root = static_cast<int>(options.rootRank);
  call->small_bytes = static_cast<int64_t>(tensors[0].nbytes());
  const bool is_root = call->root == getRank();
  return launch(std::move(call), OpType::REDUCE, tensors, is_root ? tensors : Tensors(), tensors);
}

intrusive_ptr<Work> ProcessGroupTpu::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& options) {
  check_one(inputs, "all_gather");
  TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(getSize()),
              "all_gather: needs a list of ", getSize(), " output tensors");
  check_alike(outputs[0], inputs[0], "all_gather");
  TORCH_CHECK(outputs[0][getRank()].numel() == inputs[0].numel(),
              "all_gather: the output for rank ", getRank(),
              " must have as many elements as its input");
  auto call = describe(CollectiveKind::kAllGather, "all_gather", outputs[0], options.timeout);
  bool even = true;
  for (const at::Tensor& output : outputs[0]) even &= output.numel() == inputs[0].numel();
  if (even) {
    call->text = "all_gather of " + describe_tensor(inputs[0]);
    call->small_bytes = static_cast<int64_t>(inputs[0].nbytes());
  }
  // A group of one: a list of one tensor is the same as that tensor.
  return launch(std::move(call), OpType::ALLGATHER, inputs, outputs[0], outputs[0]);
}

intrusive_ptr<Work> ProcessGroupTpu::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::AllgatherOptions& options) {
  Tensors outputs = {output}, inputs = {input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

intrusive_ptr<Work> ProcessGroupTpu::allgather_coalesced(std::vector<Tensors>& outputs,
                                                         Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  // outputs[rank][i] of inputs[i].
  std::vector<intrusive_ptr<Work>> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> list(1);
    for (const Tensors& of_rank : outputs) list[0].push_back(of_rank.at(i));
    Tensors input = {inputs[i]};
    works.push_back(allgather(list, input, options));
  }
  return c10::make_intrusive<WorkOfAll>(std::move(works));
}

intrusive_ptr<Work> ProcessGroupTpu::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "all_gather_into_tensor: ", inputs.size(),
              " inputs and ", outputs.size(), " outputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_alike({outputs[i]}, inputs[i], "all_gather_into_tensor");
    TORCH_CHECK(
        outputs[i].numel() == inputs[i].numel() * getSize(),
        "all_gather_into_tensor: the output must have as many elements as the inputs of all "
        "ranks: ",
        inputs[i].numel() * getSize(), ", not ", outputs[i].numel());
  }
  auto call =
      describe(CollectiveKind::kAllGather, "all_gather_into_tensor", inputs, options.timeout);
  if (inputs.size() == 1) call->small_bytes = static_cast<int64_t>(inputs[0].nbytes());
  return launch(std::move(call), OpType::_ALLGATHER_BASE, inputs, outputs, outputs);
}

intrusive_ptr<Work> ProcessGroupTpu::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::GatherOptions& options) {
  check_one(inputs, "gather");
  const bool is_root = options.rootRank == getRank();
  TORCH_CHECK(
      !is_root || (outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(getSize())),
      "gather: the root needs a list of ", getSize(), " output tensors");
  Tensors results = is_root ? outputs[0] : Tensors();
  check_alike(results, inputs[0], "gather");
  for (const at::Tensor& result : results) {
    TORCH_CHECK(result.numel() == inputs[0].numel(),
                "gather: all tensors must have as many elements");
  }
  auto call = describe(CollectiveKind::kGather, with_root("gather", options.rootRank), inputs,
                       options.timeout);
  call->root = static_cast<int>(options.rootRank);
  return launch(std::move(call), OpType::GATHER, inputs, results, results);
}

intrusive_ptr<Work> ProcessGroupTpu::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                             const c10d::ScatterOptions& options) {
  check_one(outputs, "scatter");
  const bool is_root = options.rootRank == getRank();
  TORCH_CHECK(
      !is_root || (inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(getSize())),
      "scatter: the root needs a list of ", getSize(), " input tensors");
  const Tensors sent = is_root ? inputs[0] : Tensors();
  check_alike(sent, outputs[0], "scatter");
  for (const at::Tensor& tensor : sent) {
    TORCH_CHECK(tensor.numel() == outputs[0].numel(),
                "scatter: all tensors must have as many elements");
  }
  auto call = describe(CollectiveKind::kScatter, with_root("scatter", options.rootRank), outputs,
                       options.timeout);
  call->root = static_cast<int>(options.rootRank);
  return launch(std::move(call), OpType::SCATTER, sent, outputs, outputs);
}

intrusive_ptr<Work> ProcessGroupTpu::reduce_scatters(std::string name, OpType type,
                                                     const Tensors& outputs, const Tensors& inputs,
                                                     std::vector<int64_t> splits,
                                                     const c10d::ReduceScatterOptions& options) {
  auto call = describe(CollectiveKind::kReduceScatter, std::move(name), inputs, options.timeout);
  set_reduction(call.get(), options.reduceOp, inputs);
  call->in_splits = std::move(splits);
  return launch(std::move(call), type, inputs, outputs, outputs);
}

intrusive_ptr<Work> ProcessGroupTpu::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                    const c10d::ReduceScatterOptions& options) {
  check_one(outputs, "reduce_scatter");
  TORCH_CHECK(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(getSize()),
              "reduce_scatter: needs a list of ", getSize(), " input tensors");
  check_alike(inputs[0], outputs[0], "reduce_scatter");
  check_tensors(inputs[0], "reduce_scatter");
  TORCH_CHECK(inputs[0][getRank()].numel() == outputs[0].numel(),
              "reduce_scatter: the input for rank ", getRank(),
              " must have as many elements as the output");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<int64_t> splits;
  Tensors flat;
  for (const at::Tensor& input : inputs[0]) {
    splits.push_back(input.numel());
    flat.push_back(input.reshape({-1}));
  }
  return reduce_scatters(with_reduction("reduce_scatter", options.reduceOp), OpType::REDUCE_SCATTER,
                         outputs, {at::cat(flat)}, splits, options);
}

intrusive_ptr<Work> ProcessGroupTpu::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  Tensors outputs = {output}, inputs = {input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

intrusive_ptr<Work> ProcessGroupTpu::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "reduce_scatter_tensor: ", inputs.size(),
              " inputs and ", outputs.size(), " outputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_alike({outputs[i]}, inputs[i], "reduce_scatter_tensor");
    TORCH_CHECK(inputs[i].numel() == outputs[i].numel() * getSize(),
                "reduce_scatter_tensor: the input must have as many elements as the outputs of all "
                "ranks: ",
                outputs[i].numel() * getSize(), ", not ", inputs[i].numel());
  }
  return reduce_scatters(with_reduction("reduce_scatter_tensor", options.reduceOp),
                         OpType::_REDUCE_SCATTER_BASE, outputs, inputs, {}, options);
}

intrusive_ptr<Work> ProcessGroupTpu::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                   std::vector<int64_t>& output_splits,
                                                   std::vector<int64_t>& input_splits,
                                                   const c10d::AllToAllOptions& options) {
  check_alike({output}, input, "all_to_all_single");
  // Splits count rows.
  const auto elements = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
    const int64_t row = rows > 0 ? tensor.numel() / rows : 0;
    std::vector<int64_t> numbers = splits;
    if (splits.empty()) {
      TORCH_CHECK(rows % getSize() == 0, "all_to_all_single: ", rows,
                  " rows do not divide equally among ", getSize(), " ranks");
      numbers.assign(static_cast<size_t>(getSize()), rows / getSize());
    }
    TORCH_CHECK(numbers.size() == static_cast<size_t>(getSize()) && total(numbers) == rows,
                "all_to_all_single: splits must be ", getSize(), " numbers whose sum is ", rows);
    for (int64_t& number : numbers) number *= row;
    return numbers;
  };
  auto call = describe(CollectiveKind::kAllToAll, "all_to_all_single", {}, options.timeout);
  call->text += std::string(" of ") + c10::toString(input.scalar_type());
  call->in_splits = elements(input, input_splits);
  call->out_splits = elements(output, output_splits);
  return launch(std::move(call), OpType::ALLTOALL_BASE, {input}, {output}, {output});
}

intrusive_ptr<Work> ProcessGroupTpu::alltoall(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllToAllOptions& options) {
  const auto size = static_cast<size_t>(getSize());
  TORCH_CHECK(outputs.size() == size && inputs.size() == size, "all_to_all: needs lists of ", size,
              " tensors");
  check_alike(outputs, inputs[0], "all_to_all");
  check_alike(inputs, inputs[0], "all_to_all");
  auto call = describe(CollectiveKind::kAllToAll, "all_to_all", {}, options.timeout);
  call->text += std::string(" of ") + c10::toString(inputs[0].scalar_type());
  for (const at::Tensor& tensor : inputs) call->in_splits.push_back(tensor.numel());
  for (const at::Tensor& tensor : outputs) call->out_splits.push_back(tensor.numel());
  return launch(std::move(call), OpType::ALLTOALL, inputs, outputs, outputs);
}

intrusive_ptr<Work> ProcessGroupTpu::send(Tensors& tensors, int peer, int tag) {
  check_one(tensors, "send");
  auto call = describe(CollectiveKind::kSend, "send", tensors, kNoTimeout);
  call->root = peer;
  call->tag = tag;
  return launch(std::move(call), OpType::SEND, tensors, {}, tensors);
}

intrusive_ptr<Work> ProcessGroupTpu::receive(Tensors& tensors, int peer, int tag) {
  check_one(tensors, "recv");
  auto call = describe(CollectiveKind::kRecv, "recv", tensors, kNoTimeout);
  call->root = peer;
  call->tag = tag;
  return launch(std::move(call), peer < 0 ? OpType::RECVANYSOURCE : OpType::RECV, {}, tensors,
                tensors);
}

intrusive_ptr<Work> ProcessGroupTpu::recv(Tensors& tensors, int peer, int tag) {
  return receive(tensors, peer, tag);
}
intrusive_ptr<Work> ProcessGroupTpu::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, -1, tag);
}

intrusive_ptr<Work> ProcessGroupTpu::barrier(const c10d::BarrierOptions& options) {
  // As on a stream: behind all that is recorded.
  TPU_THROW_IF_ERROR(tpu_engine_flush(engine(), false));
  return launch(describe(CollectiveKind::kBarrier, "barrier", {}, options.timeout), OpType::BARRIER,
                {}, {}, {});
}

}  // namespace tpu_shim
