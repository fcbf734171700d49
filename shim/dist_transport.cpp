#include "dist_transport.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "storage.h"

namespace tpu_shim {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How often a wait looks whether the group was closed meanwhile.
constexpr milliseconds kSlice{100};
// Gloo has its own clock, which starts later.
constexpr milliseconds kGrace{5000};

std::mutex g_tickets_mutex;
std::unordered_map<int64_t, Ticket>& tickets() {
  static auto* map = new std::unordered_map<int64_t, Ticket>();
  return *map;
}

int64_t bytes_of(const CollectiveOutput& output) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(output.dtype));
  for (const int64_t size : output.sizes) bytes *= size;
  return bytes;
}

// Which part of small content a rank sends in its block; -1: this kind has none, or it is large. It
// depends on nothing that differs between ranks that agree.
int64_t small_bytes(const Collective& call) {
  int64_t bytes = 0;
  switch (call.kind) {
    case CollectiveKind::kBarrier: return 0;
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllGather: bytes = call.small_bytes; break;
    default: return -1;
  }
  return bytes <= kInlineBytes ? bytes : -1;
}

at::Tensor copy_in(const char* data, int64_t bytes) {
  at::Tensor tensor = at::empty({bytes}, at::kByte);
  if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), data, static_cast<size_t>(bytes));
  return tensor;
}

std::vector<int64_t> scaled(std::vector<int64_t> numbers, int64_t factor) {
  for (int64_t& number : numbers) number *= factor;
  return numbers;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

int64_t add_ticket(Ticket ticket) {
  static int64_t next = 0;
  std::lock_guard<std::mutex> lock(g_tickets_mutex);
  tickets().emplace(++next, std::move(ticket));
  return next;
}

Ticket get_ticket(int64_t number) {
  std::lock_guard<std::mutex> lock(g_tickets_mutex);
  return tickets().at(number);
}

void drop_ticket(int64_t number) {
  std::lock_guard<std::mutex> lock(g_tickets_mutex);
  tickets().erase(number);
}

// --- life ---

Transport::Transport(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size)
    : gloo_(std::move(gloo)), rank_(rank), size_(size) {}

Transport::~Transport() {
  for (const auto& [key, channel] : channels_) tpu_channel_destroy(channel);
}

namespace {

void landed(void* context, int64_t number, tpu_status_t error, uint64_t job) {
  auto* transport = static_cast<Transport*>(context);
  const Ticket ticket = get_ticket(number);
  drop_ticket(number);
  std::string text;
  if (error != nullptr) text = tpu_status_message(error);
  if (error != nullptr && !ticket.call->started) transport->fail(*ticket.call, text);
  ticket.landed(error != nullptr ? &text : nullptr, job);
  transport->end();
}

}  // namespace

tpu_channel_t* Transport::channel(const Collective& call) {
  const bool sends = call.kind == CollectiveKind::kSend;
  const bool passes = sends || call.kind == CollectiveKind::kRecv;
  const int64_t key = passes ? (int64_t{call.root} + 2) * 2 + (sends ? 1 : 0) : 0;
  std::lock_guard<std::mutex> lock(mutex_);
  tpu_channel_t*& channel = channels_[key];
  if (channel == nullptr) TPU_THROW_IF_ERROR(tpu_channel_create(engine(), &landed, this, &channel));
  return channel;
}

void Transport::begin() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++under_way_;
}

void Transport::end() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--under_way_ == 0) ended_.notify_all();
}

bool Transport::idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return under_way_ == 0;
}

void Transport::wait_idle() {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return under_way_ == 0; });
}

// --- failures ---

std::string Transport::prefix(const Collective& call) const {
  const std::string number =
      call.sequence > 0 ? "collective " + std::to_string(call.sequence) + ", " : "";
  return "rank " + std::to_string(rank_) + " of group '" + name_ + "', " + number + call.text +
         ": ";
}

void Transport::throw_failure(const Collective& call, const std::string& why, bool lost) {
  const std::string text = prefix(call) + why;
  if (lost) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (lost_.empty()) lost_ = text;
  }
  TORCH_CHECK_WITH(DistBackendError, false, text);
}

void Transport::throw_disagreement(const std::string& what) {
  TORCH_CHECK_WITH(DistBackendError, false, "the ranks of group '", name_, "' disagree: ", what);
}

void Transport::check_alive() const {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, lost_.empty(), "the group '", name_,
                   "' is of no more use since an earlier collective failed: ", lost_);
}

void Transport::await(const c10::intrusive_ptr<c10d::Work>& work, const Collective& call) {
  const auto last = steady_clock::now() + call.timeout + kGrace;
  try {
    while (!work->isCompleted()) {
      if (closed_) throw_failure(call, "the group was destroyed meanwhile", true);
      if (steady_clock::now() > last) throw_failure(call, "timed out", true);
      try {
        work->wait(kSlice);
      } catch (const std::exception&) {
        if (work->isCompleted()) throw;
      }
    }
    if (const std::exception_ptr error = work->exception()) std::rethrow_exception(error);
  } catch (const c10::DistBackendError&) {
    throw;
  } catch (const c10::Error& error) {
    throw_failure(call, first_line(error.what_without_backtrace()), true);
  } catch (const std::exception& error) {
    throw_failure(call, first_line(error.what()), true);
  }
}

// --- agreement ---

CollectiveBlock Transport::block_of(const Collective& call) const {
  CollectiveBlock block{};
  block.agreement =
      tpu_hash_bytes(call.text.data(), call.text.size(), static_cast<uint64_t>(call.root + 1));
  block.sequence = call.sequence;
  const size_t size = std::min(call.text.size(), sizeof(block.text) - 1);
  std::memcpy(block.text, call.text.data(), size);
  return block;
}

std::vector<CollectiveBlock> Transport::exchange(const CollectiveBlock& mine,
                                                 const Collective& call) {
  const at::Tensor all =
      gathered(copy_in(reinterpret_cast<const char*>(&mine), sizeof(mine)), call);
  std::vector<CollectiveBlock> blocks(static_cast<size_t>(size_));
  std::memcpy(blocks.data(), all.const_data_ptr(), blocks.size() * sizeof(CollectiveBlock));
  return blocks;
}

void Transport::check_agreement(const Collective& call,
                                const std::vector<CollectiveBlock>& blocks) {
  const auto rank_of = [&blocks](const CollectiveBlock& b) {
    return std::to_string(&b - blocks.data());
  };
  for (const CollectiveBlock& block : blocks) {
    if (block.failed == 0) continue;
    throw_failure(call,
                  "rank " + rank_of(block) + " could not take part: " +
                      std::string(block.data, std::min<size_t>(block.bytes, sizeof(block.data))),
                  false);
  }
  const CollectiveBlock& first = blocks.front();
  for (const CollectiveBlock& block : blocks) {
    if (block.agreement == first.agreement && block.sequence == first.sequence) continue;
    const auto said = [&rank_of](const CollectiveBlock& b) {
      return "rank " + rank_of(b) + " called " + b.text + " as collective " +
             std::to_string(b.sequence);
    };
    throw_disagreement(said(first) + ", " + said(block));
  }
}

void Transport::fail(Collective& call, const std::string& why) {
  call.started = true;
  CollectiveBlock block = block_of(call);
  block.failed = 1;
  block.bytes = std::min(why.size(), sizeof(block.data));
  std::memcpy(block.data, why.data(), block.bytes);
  try {
    check_alive();
    if (call.kind == CollectiveKind::kSend) {
      pass(copy_in(reinterpret_cast<const char*>(&block), sizeof(block)), call.root, true, call);
    } else if (call.kind != CollectiveKind::kRecv) {
      exchange(block, call);
    }
  } catch (const std::exception&) {
    // The others are gone, or will be told by their own clocks: this rank has its own error.
  }
}

// --- running ---

std::vector<at::Tensor> Transport::run(Collective& call, std::vector<at::Tensor> inputs) {
  check_alive();
  call.started = true;
  if (call.kind == CollectiveKind::kSend) return send(call, inputs[0]);
  if (call.kind == CollectiveKind::kRecv) return receive(call);
  return run_collective(call, std::move(inputs));
}

std::vector<at::Tensor> Transport::run_collective(Collective& call,
                                                  std::vector<at::Tensor> inputs) {
  CollectiveBlock mine = block_of(call);
  const int64_t small = small_bytes(call);
  if (small > 0 && !inputs.empty()) {
    const at::Tensor bytes = as_bytes(inputs[0]);
    mine.bytes = static_cast<uint64_t>(bytes.numel());
    std::memcpy(mine.data, bytes.const_data_ptr(), mine.bytes);
  }
  const std::vector<CollectiveBlock> blocks = exchange(mine, call);
  check_agreement(call, blocks);
  if (small >= 0) return run_small(call, inputs.empty() ? at::Tensor() : inputs[0], blocks);
  return run_large(call, std::move(inputs));
}

std::vector<at::Tensor> Transport::run_small(const Collective& call, const at::Tensor& input,
                                             const std::vector<CollectiveBlock>& blocks) {
  std::vector<at::Tensor> outputs;
  if (call.outputs.empty()) return outputs;
  std::vector<at::Tensor> content;
  for (const CollectiveBlock& block : blocks) {
    content.push_back(copy_in(block.data, static_cast<int64_t>(block.bytes)));
  }
  const CollectiveOutput& output = call.outputs[0];
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
      for (at::Tensor& bytes : content) bytes = from_bytes(bytes, output.dtype, output.sizes);
      outputs.push_back(reduce_here(content, call));
      break;
    case CollectiveKind::kBroadcast:
      outputs.push_back(
          from_bytes(content[static_cast<size_t>(call.root)], output.dtype, output.sizes));
      break;
    case CollectiveKind::kAllGather: {
      if (call.outputs.size() == 1) {
        outputs.push_back(from_bytes(at::cat(content), output.dtype, output.sizes));
        break;
      }
      for (size_t r = 0; r < content.size(); ++r) {
        outputs.push_back(from_bytes(content[r], call.outputs[r].dtype, call.outputs[r].sizes));
      }
      break;
    }
    default: TORCH_CHECK(false, "internal: ", call.text, " is never small");
  }
  return outputs;
}

std::vector<at::Tensor> Transport::run_large(const Collective& call,
                                             std::vector<at::Tensor> inputs) {
  std::vector<at::Tensor> outputs;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      for (at::Tensor& tensor : inputs) outputs.push_back(all_reduced(std::move(tensor), call));
      return outputs;
    case CollectiveKind::kReduce: {
      at::Tensor result = reduced(std::move(inputs[0]), call);
      if (!call.outputs.empty()) outputs.push_back(std::move(result));
      return outputs;
    }
    case CollectiveKind::kReduceScatter: {
      for (size_t i = 0; i < call.outputs.size(); ++i) {
        const CollectiveOutput& output = call.outputs[i];
        const std::vector<int64_t> own(static_cast<size_t>(size_), bytes_of(output));
        const auto item = static_cast<int64_t>(c10::elementSize(output.dtype));
        const auto sent = call.in_splits.empty() ? own : scaled(call.in_splits, item);
        const at::Tensor rows = exchanged(as_bytes(inputs[i]), sent, own, call);
        std::vector<at::Tensor> parts;
        for (int r = 0; r < size_; ++r) {
          parts.push_back(
              from_bytes(rows.narrow(0, r * own[0], own[0]), output.dtype, output.sizes));
        }
        outputs.push_back(reduce_here(parts, call));
      }
      return outputs;
    }
    default: return move(call, inputs);
  }
}

// What moves bytes only.
std::vector<at::Tensor> Transport::move(const Collective& call,
                                        const std::vector<at::Tensor>& inputs) {
  const auto shaped = [&call](const at::Tensor& bytes, size_t k) {
    return from_bytes(bytes, call.outputs[k].dtype, call.outputs[k].sizes);
  };
  // One flat run of bytes as all outputs, in order.
  const auto cut = [&](const at::Tensor& flat) {
    std::vector<at::Tensor> outputs;
    int64_t at = 0;
    for (size_t k = 0; k < call.outputs.size(); ++k) {
      const int64_t bytes = bytes_of(call.outputs[k]);
      outputs.push_back(shaped(flat.narrow(0, at, bytes), k));
      at += bytes;
    }
    return outputs;
  };
  switch (call.kind) {
    case CollectiveKind::kBroadcast: {
      std::vector<at::Tensor> data = {
          inputs.empty() ? at::empty({bytes_of(call.outputs[0])}, at::kByte) : as_bytes(inputs[0])};
      c10d::BroadcastOptions options;
      options.rootRank = call.root;
      options.timeout = call.timeout;
      await(gloo_->broadcast(data, options), call);
      return cut(data[0]);
    }
    case CollectiveKind::kAllGather: {
      if (call.outputs.size() != inputs.size()) {  // a list, maybe of different sizes
        int64_t most = 0;
        for (const CollectiveOutput& output : call.outputs) most = std::max(most, bytes_of(output));
        const at::Tensor own = as_bytes(inputs[0]);
        at::Tensor padded = own;
        if (own.numel() < most) {
          padded = at::empty({most}, at::kByte);
          padded.narrow(0, 0, own.numel()).copy_(own);
        }
        const at::Tensor rows = gathered(padded, call);
        std::vector<at::Tensor> outputs;
        for (size_t r = 0; r < call.outputs.size(); ++r) {
          outputs.push_back(
              shaped(rows[static_cast<int64_t>(r)].narrow(0, 0, bytes_of(call.outputs[r])), r));
        }
        return outputs;
      }
      std::vector<at::Tensor> outputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        outputs.push_back(shaped(gathered(as_bytes(inputs[i]), call).view({-1}), i));
      }
      return outputs;
    }
    case CollectiveKind::kAllToAll: {
      check_splits(call);
      std::vector<at::Tensor> parts;
      for (const at::Tensor& input : inputs) parts.push_back(as_bytes(input));
      const auto item =
          static_cast<int64_t>(call.outputs.empty() ? inputs[0].element_size()
                                                    : c10::elementSize(call.outputs[0].dtype));
      const at::Tensor flat = parts.size() == 1 ? parts[0] : at::cat(parts);
      return cut(
          exchanged(flat, scaled(call.in_splits, item), scaled(call.out_splits, item), call));
    }
    case CollectiveKind::kGather: {
      std::vector<at::Tensor> data = {as_bytes(inputs[0])};
      std::vector<std::vector<at::Tensor>> all;
      if (call.root == rank_) {
        all.emplace_back();
        for (int r = 0; r < size_; ++r) all[0].push_back(at::empty({data[0].numel()}, at::kByte));
      }
      c10d::GatherOptions options;
      options.rootRank = call.root;
      options.timeout = call.timeout;
      if (data[0].numel() > 0) await(gloo_->gather(all, data, options), call);
      std::vector<at::Tensor> outputs;
      for (size_t k = 0; k < call.outputs.size(); ++k) outputs.push_back(shaped(all[0][k], k));
      return outputs;
    }
    case CollectiveKind::kScatter: {
      std::vector<at::Tensor> data = {at::empty({bytes_of(call.outputs[0])}, at::kByte)};
      std::vector<std::vector<at::Tensor>> all;
      if (call.root == rank_) {
        all.emplace_back();
        for (const at::Tensor& input : inputs) all[0].push_back(as_bytes(input));
      }
      c10d::ScatterOptions options;
      options.rootRank = call.root;
      options.timeout = call.timeout;
      if (data[0].numel() > 0) await(gloo_->scatter(data, all, options), call);
      return cut(data[0]);
    }
    default: TORCH_CHECK(false, "internal: ", call.text, " moves nothing");
  }
}

at::Tensor Transport::all_reduced(at::Tensor tensor, const Collective& call) {
  const c10::ScalarType dtype = tensor.scalar_type();
  const std::vector<int64_t> sizes = tensor.sizes().vec();
  Wire wire = to_wire(std::move(tensor), call);
  std::vector<at::Tensor> data = {wire.numbers.contiguous()};
  c10d::AllreduceOptions options;
  options.reduceOp = wire.op;
  options.timeout = call.timeout;
  if (data[0].numel() > 0) await(gloo_->allreduce(data, options), call);
  return from_wire(data[0], call, size_, dtype, sizes);
}

at::Tensor Transport::reduced(at::Tensor tensor, const Collective& call) {
  const c10::ScalarType dtype = tensor.scalar_type();
  const std::vector<int64_t> sizes = tensor.sizes().vec();
  Wire wire = to_wire(std::move(tensor), call);
  std::vector<at::Tensor> data = {wire.numbers.contiguous()};
  c10d::ReduceOptions options;
  options.reduceOp = wire.op;
  options.rootRank = call.root;
  options.timeout = call.timeout;
  if (data[0].numel() > 0) await(gloo_->reduce(data, options), call);
  return from_wire(data[0], call, size_, dtype, sizes);
}

at::Tensor Transport::gathered(const at::Tensor& bytes, const Collective& call) {
  at::Tensor all = at::empty({int64_t{size_}, bytes.numel()}, at::kByte);
  if (bytes.numel() == 0) return all;
  at::Tensor flat = all.view({-1}), input = bytes;
  c10d::AllgatherOptions options;
  options.timeout = call.timeout;
  await(gloo_->_allgather_base(flat, input, options), call);
  return all;
}

at::Tensor Transport::exchanged(const at::Tensor& bytes, std::vector<int64_t> in_splits,
                                std::vector<int64_t> out_splits, const Collective& call) {
  int64_t total = 0;
  for (const int64_t split : out_splits) total += split;
  at::Tensor result = at::empty({std::max<int64_t>(total, 1)}, at::kByte).narrow(0, 0, total);
  at::Tensor input = bytes;
  c10d::AllToAllOptions options;
  options.timeout = call.timeout;
  await(gloo_->alltoall_base(result, input, out_splits, in_splits, options), call);
  return result;
}

// What one rank sends to another must be what that one expects: Gloo would wait, or worse.
void Transport::check_splits(const Collective& call) {
  const auto size = static_cast<size_t>(size_);
  std::vector<int64_t> mine = call.in_splits;
  mine.insert(mine.end(), call.out_splits.begin(), call.out_splits.end());
  const at::Tensor all = gathered(copy_in(reinterpret_cast<const char*>(mine.data()),
                                          static_cast<int64_t>(mine.size() * sizeof(int64_t))),
                                  call);
  const auto* splits = static_cast<const int64_t*>(all.const_data_ptr());
  for (size_t from = 0; from < size; ++from) {
    for (size_t to = 0; to < size; ++to) {
      const int64_t sent = splits[from * 2 * size + to];
      const int64_t expected = splits[to * 2 * size + size + from];
      if (sent == expected) continue;
      throw_disagreement(call.text + ": rank " + std::to_string(from) + " sends " +
                         std::to_string(sent) + " elements to rank " + std::to_string(to) +
                         ", which expects " + std::to_string(expected));
    }
  }
}

// --- messages ---

// One Gloo message. With `peer` -1 it comes from anyone, who is then call.source.
void Transport::pass(at::Tensor bytes, int peer, bool sends, Collective& call) {
  std::vector<at::Tensor> data = {std::move(bytes)};
  try {
    const auto work = sends      ? gloo_->send(data, peer, call.tag)
                      : peer < 0 ? gloo_->recvAnysource(data, call.tag)
                                 : gloo_->recv(data, peer, call.tag);
    work->wait(call.timeout);
    if (!sends) call.source = peer >= 0 ? peer : work->sourceRank();
  } catch (const c10::Error& error) {
    throw_failure(call, first_line(error.what_without_backtrace()), true);
  } catch (const std::exception& error) {
    throw_failure(call, first_line(error.what()), true);
  }
}

std::vector<at::Tensor> Transport::send(Collective& call, const at::Tensor& input) {
  CollectiveBlock block = block_of(call);
  const at::Tensor bytes = as_bytes(input);
  block.bytes = static_cast<uint64_t>(bytes.numel());
  if (bytes.numel() <= kInlineBytes) std::memcpy(block.data, bytes.const_data_ptr(), block.bytes);
  pass(copy_in(reinterpret_cast<const char*>(&block), sizeof(block)), call.root, true, call);
  if (bytes.numel() > kInlineBytes) pass(bytes, call.root, true, call);
  return {};
}

std::vector<at::Tensor> Transport::receive(Collective& call) {
  const CollectiveOutput& output = call.outputs[0];
  CollectiveBlock block{};
  at::Tensor header = at::empty({static_cast<int64_t>(sizeof(block))}, at::kByte);
  pass(header, call.root, false, call);
  std::memcpy(&block, header.const_data_ptr(), sizeof(block));
  if (block.failed != 0) {
    throw_failure(call,
                  "rank " + std::to_string(call.source) + " could not send: " +
                      std::string(block.data, std::min<size_t>(block.bytes, sizeof(block.data))),
                  false);
  }
  at::Tensor bytes = copy_in(block.data, std::min(static_cast<int64_t>(block.bytes), kInlineBytes));
  if (static_cast<int64_t>(block.bytes) > kInlineBytes) {
    // Taken also if it is not what was expected, so that the next message is found.
    bytes = at::empty({static_cast<int64_t>(block.bytes)}, at::kByte);
    pass(bytes, call.source, false, call);
  }
  const std::string sent = std::string(block.text).substr(std::string(block.text).find(' '));
  if (static_cast<int64_t>(block.bytes) != bytes_of(output)) {
    throw_failure(call, "rank " + std::to_string(call.source) + " sent" + sent, false);
  }
  return {from_bytes(bytes, output.dtype, output.sizes)};
}

}  // namespace tpu_shim
