#include "decompose.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/python_headers.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "adapter.h"
#include "base/log.h"
#include "debug_checks.h"
#include "hooks.h"
#include "meta_query.h"
#include "python_values.h"
#include "record.h"
#include "signature.h"

namespace tpu_shim {

namespace {

constexpr size_t kMaxSignatures = 512;  // per overload; the least recently used goes first
constexpr uint32_t kMaxRecords = 2000;  // longer ones would compile for minutes
constexpr int kMaxRefusals = 16;        // signatures that may be tried in vain before any succeeded

using Results = c10::SmallVector<at::Tensor, 4>;

// --- what is known per overload ---

struct Entry {
  std::vector<uint64_t> words;
  Template made;              // empty: the host runs this signature
  std::vector<bool> defined;  // which results there are
  uint64_t last_use = 0;
};

class Decomposition {
 public:
  explicit Decomposition(const c10::OperatorHandle& op)
      : op_(op), name_(c10::toString(op.operator_name())) {
    for (const c10::Argument& arg : op.schema().arguments()) is_out_.push_back(arg.is_out());
  }

  bool run(torch::jit::Stack* stack);
  const std::string& name() const { return name_; }
  std::atomic<int64_t> traced{0}, replayed{0};

 private:
  struct Found {
    PyObject* function;
    c10::OperatorHandle functional;
  };
  enum class Known { kNothing, kTemplate, kRefused };

  bool resolve();
  bool sign(const c10::IValue* args, Signature* signature) const;
  Known look_up(const Signature& signature, Template* made, std::vector<bool>* defined);
  void remember(const Signature& signature, Template made, std::vector<bool> defined);
  void replay(const Signature& signature, const Template& made, const std::vector<bool>& defined,
              Results* results);
  bool trace(const c10::IValue* args, const Signature& signature, Results* results);
  bool call_python(const c10::IValue* args, Results* results, std::string* problem) const;
  void own_results(const Signature& signature, Results* results) const;
  void finish_capture(const Signature& signature, const Results& results);
  void refuse(const Signature& signature, const std::string& why);
  void give_back(torch::jit::Stack* stack, Results& results) const;

  c10::OperatorHandle op_;
  std::string name_;
  std::vector<bool> is_out_;
  std::mutex mutex_;
  bool resolved_ = false;
  std::optional<Found> found_;  // never changes once resolved_
  std::atomic<bool> hopeless_{false};
  std::unordered_multimap<uint64_t, Entry> entries_;
  uint64_t clock_ = 0;
  int refusals_ = 0, templates_ = 0;
};

// Decompositions that this thread is in the middle of, and whether the outermost is captured.
thread_local std::vector<const Decomposition*> t_running;

struct Running {
  explicit Running(const Decomposition* d) { t_running.push_back(d); }
  ~Running() { t_running.pop_back(); }
};

bool is_running(const Decomposition* d) {
  for (const Decomposition* other : t_running) {
    if (other == d) return true;
  }
  return false;
}

bool Decomposition::resolve() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (resolved_) return found_.has_value();
  }
  std::optional<Found> found;
  std::string problem;
  {
    Gil gil;
    PyRef module(PyImport_ImportModule("torch_tpu._decompositions"));
    const c10::OperatorName& name = op_.operator_name();
    PyRef answer(PyObject_CallMethod(module.get(), "find", "ss", name.name.c_str(),
                                     name.overload_name.c_str()));
    const char *base = nullptr, *overload = nullptr;
    PyObject* function = nullptr;
    if (PyUnicode_Check(answer.get())) {
      problem = PyUnicode_AsUTF8(answer.get());
    } else if (PyArg_ParseTuple(answer.get(), "Oss", &function, &base, &overload)) {
      Py_INCREF(function);  // for good
      found = Found{function, c10::Dispatcher::singleton().findSchemaOrThrow(base, overload)};
    } else {
      throw_python_error();
    }
  }
  if (!problem.empty())
    tpu_log(TPU_LOG_FALLBACK, "%s is not decomposed: %s", name_.c_str(), problem.c_str());
  std::lock_guard<std::mutex> lock(mutex_);
  if (!resolved_) {
    found_ = found;
    hopeless_.store(!found.has_value());
    resolved_ = true;
  }
  return found_.has_value();
}

bool Decomposition::sign(const c10::IValue* args, Signature* signature) const {
  for (size_t i = 0; i < is_out_.size(); ++i) {
    if (!is_out_[i] && !signature->add(args[i])) return false;
  }
  return true;
}

Decomposition::Known Decomposition::look_up(const Signature& signature, Template* made,
                                            std::vector<bool>* defined) {
  const uint64_t hash = signature.hash();
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto [it, end] = entries_.equal_range(hash); it != end; ++it) {
    Entry& entry = it->second;
    if (c10::ArrayRef<uint64_t>(entry.words) != c10::ArrayRef<uint64_t>(signature.words)) continue;
    entry.last_use = ++clock_;
    if (entry.made == nullptr) return Known::kRefused;
    *made = entry.made;
    *defined = entry.defined;
    return Known::kTemplate;
  }
  return Known::kNothing;
}

void Decomposition::remember(const Signature& signature, Template made, std::vector<bool> defined) {
  std::lock_guard<std::mutex> lock(mutex_);
  made != nullptr ? ++templates_ : ++refusals_;
  if (templates_ == 0 && refusals_ >= kMaxRefusals) hopeless_.store(true);
  if (entries_.size() >= kMaxSignatures) {
    auto oldest = entries_.begin();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->second.last_use < oldest->second.last_use) oldest = it;
    }
    entries_.erase(oldest);
  }
  entries_.emplace(signature.hash(), Entry{{signature.words.begin(), signature.words.end()},
                                           std::move(made),
                                           std::move(defined),
                                           ++clock_});
}

void Decomposition::refuse(const Signature& signature, const std::string& why) {
  tpu_log(TPU_LOG_FALLBACK, "%s is not decomposed: %s", name_.c_str(), why.c_str());
  remember(signature, nullptr, {});
}

void Decomposition::replay(const Signature& signature, const Template& made,
                           const std::vector<bool>& defined, Results* results) {
  c10::SmallVector<tpu_result_t, 4> made_results(
      static_cast<size_t>(tpu_template_result_count(made.get())));
  note_location();
  TPU_THROW_IF_ERROR(tpu_engine_replay(engine(), made.get(), signature.inputs.data(), nullptr,
                                       nullptr, made_results.data()));
  size_t next = 0;
  for (bool is_defined : defined) {
    if (!is_defined) {
      results->emplace_back();
      continue;
    }
    const tpu_result_t& result = made_results[next++];
    results->push_back(wrap_storage(result.storage, tpu_meta_get(result.meta)));
  }
}

// Calls the function with the functional form's arguments. False, with the reason, when it cannot
// handle them; what the user did wrong is then told by the host's kernel.
bool Decomposition::call_python(const c10::IValue* args, Results* results,
                                std::string* problem) const {
  const c10::FunctionSchema& schema = found_->functional.schema();
  Gil gil;
  PyCall call(schema);
  size_t k = 0;
  for (size_t i = 0; i < is_out_.size(); ++i) {
    if (!is_out_[i]) call.set(k++, args[i]);
  }
  PyRef answer(call.run(found_->function), PyRef::kMayBeNull);
  if (answer.get() == nullptr) {
    *problem = take_python_error();  // throws what is no Exception, such as KeyboardInterrupt
    return false;
  }
  if (!tensors_from_python(answer.get(), schema.returns().size(), results)) {
    *problem = "its decomposition does not return tensors";
    return false;
  }
  return true;
}

// Results must be whole tensors of their own, as any functional op's are.
void Decomposition::own_results(const Signature& signature, Results* results) const {
  c10::SmallVector<tpu_storage_t*, 8> taken;
  for (const tpu_operand_t& input : signature.inputs) taken.push_back(input.storage);
  for (at::Tensor& result : *results) {
    if (!result.defined()) continue;
    if (!is_tpu(result)) result = result.to(c10::Device(kTpu, current_device()));
    const bool whole = result.storage_offset() == 0 && result.is_non_overlapping_and_dense() &&
                       result.nbytes() == result.storage().nbytes() && !result.is_conj() &&
                       !result.is_neg();
    tpu_storage_t* storage = locate(result).storage;
    const bool shared = std::find(taken.begin(), taken.end(), storage) != taken.end();
    if (!whole || shared) {
      result = result.resolve_conj().resolve_neg();
      result =
          at::clone(result, result.is_non_overlapping_and_dense() ? at::MemoryFormat::Preserve
                                                                  : at::MemoryFormat::Contiguous);
    }
    taken.push_back(locate(result).storage);
  }
}

void Decomposition::finish_capture(const Signature& signature, const Results& results) {
  c10::SmallVector<tpu_operand_t, 4> operands;
  std::vector<bool> defined;
  for (const at::Tensor& result : results) {
    defined.push_back(result.defined());
    if (result.defined()) tensor_operand(result, &operands.emplace_back());
  }
  tpu_template_t* made = nullptr;
  const char* obstacle = nullptr;
  TPU_THROW_IF_ERROR(tpu_engine_capture_end(engine(), name_.c_str(),
                                            static_cast<int>(operands.size()), operands.data(),
                                            &made, &obstacle));
  if (made != nullptr) {
    tpu_log(TPU_LOG_FALLBACK, "%s is decomposed into %d records", name_.c_str(),
            tpu_template_record_count(made));
    remember(signature, Template(made, tpu_template_destroy), std::move(defined));
  } else if (obstacle != nullptr) {
    refuse(signature, obstacle);
  }
}

// Ends the capture when the decomposition leaves by an exception.
struct Capture {
  explicit Capture(const Signature& signature) {
    tpu_capture_options_t options{};
    options.max_records = kMaxRecords;
    TPU_THROW_IF_ERROR(tpu_engine_capture_begin(engine(), static_cast<int>(signature.inputs.size()),
                                                signature.inputs.data(), &options, &active));
  }
  ~Capture() {
    if (active) tpu_engine_capture_cancel(engine());
  }
  bool active = false;
};

// Runs the decomposition in Python. False when it cannot do these arguments.
bool Decomposition::trace(const c10::IValue* args, const Signature& signature, Results* results) {
  if (is_running(this)) {  // the reference is written in terms of the op: there is nothing below it
    hopeless_.store(true);
    TORCH_CHECK(false, "the decomposition of ", name_, " calls itself");
  }
  // Debug mode runs and checks one op at a time, so it has no use for templates. Inside another
  // decomposition the records are part of that one's.
  const bool keep = t_running.empty() && !debug_mode();
  Running running(this);
  std::string problem;
  bool done = false;
  std::optional<Capture> capture;
  run_below_modes([&] {
    if (keep) capture.emplace(signature);
    done = call_python(args, results, &problem);
    if (done) own_results(signature, results);
  });
  if (!done) {
    capture.reset();
    results->clear();
    if (keep) refuse(signature, problem);
    return false;
  }
  if (capture.has_value() && capture->active) {
    capture->active = false;
    finish_capture(signature, *results);
  }
  ++traced;
  return true;
}

// Writes results to self or out= where the op wants them there; what it returns goes on the stack.
void Decomposition::give_back(torch::jit::Stack* stack, Results& results) const {
  const size_t first = stack->size() - is_out_.size();
  c10::SmallVector<at::Tensor, 4> destinations;
  for (size_t i = 0; i < is_out_.size(); ++i) {
    if (is_out_[i]) destinations.push_back((*stack)[first + i].toTensor());
  }
  if (!destinations.empty()) {
    for (size_t k = 0; k < results.size() && k < destinations.size(); ++k) {
      if (!is_tpu(destinations[k])) throw_device_mismatch(destinations[k].device());
      if (results[k].defined()) write_out(results[k], destinations[k]);
      results[k] = destinations[k];
    }
  } else if (!(op_ == found_->functional)) {
    const at::Tensor self = (*stack)[first].toTensor();
    TORCH_CHECK(results[0].sizes() == self.sizes(), "output with shape ", self.sizes(),
                " doesn't match the broadcast shape ", results[0].sizes());
    TORCH_CHECK(at::canCast(results[0].scalar_type(), self.scalar_type()), "result type ",
                results[0].scalar_type(), " can't be cast to the desired output type ",
                self.scalar_type());
    copy_on_device(results[0], self);
    results[0] = self;
  }
  torch::jit::drop(*stack, is_out_.size());
  for (at::Tensor& result : results) stack->emplace_back(std::move(result));
}

bool Decomposition::run(torch::jit::Stack* stack) {
  if (hopeless_.load(std::memory_order_relaxed) || !resolve()) return false;
  const c10::IValue* args = stack->data() + stack->size() - is_out_.size();
  Signature signature;
  if (!sign(args, &signature)) return false;
  Template made;
  std::vector<bool> defined;
  const Known known = look_up(signature, &made, &defined);
  if (known == Known::kRefused) return false;
  Results results;
  if (known == Known::kTemplate && !debug_mode()) {
    replay(signature, made, defined, &results);
    ++replayed;
  } else if (!trace(args, signature, &results)) {
    return false;
  }
  give_back(stack, results);
  return true;
}

// --- all overloads ---

std::mutex g_mutex;
std::unordered_map<c10::OperatorHandle, std::unique_ptr<Decomposition>>& all() {
  static auto* map = new std::unordered_map<c10::OperatorHandle, std::unique_ptr<Decomposition>>();
  return *map;
}

}  // namespace

bool run_decomposed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!Py_IsInitialized()) return false;
  Decomposition* mine = nullptr;
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    std::unique_ptr<Decomposition>& entry = all()[op];
    if (entry == nullptr) entry = std::make_unique<Decomposition>(op);
    mine = entry.get();
  }
  return mine->run(stack);
}

std::map<std::string, DecompositionCounts> decomposition_counts() {
  std::lock_guard<std::mutex> lock(g_mutex);
  std::map<std::string, DecompositionCounts> counts;
  for (const auto& [op, d] : all()) {
    const DecompositionCounts now{d->traced.load(), d->replayed.load()};
    if (now.traced + now.replayed > 0) counts[d->name()] = now;
  }
  return counts;
}

void reset_decomposition_counts() {
  std::lock_guard<std::mutex> lock(g_mutex);
  for (const auto& [op, d] : all()) {
    d->traced = 0;
    d->replayed = 0;
  }
}

}  // namespace tpu_shim
