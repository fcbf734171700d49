#include "graph.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "debug_checks.h"
#include "generator.h"
#include "python_values.h"
#include "signature.h"
#include "stacks.h"
#include "storage.h"

namespace tpu_shim {

// How one result comes about.
struct GraphOutput {
  enum Kind { kMade, kView, kObject } kind;
  size_t number;       // kMade: the template's result; kView: the argument it is a view of
  size_t first;        // kMade: the first output over the same storage
  tpu_meta_id_t view;  // kView
  int64_t distance;    // kView: bytes from the argument's first element
  std::shared_ptr<PyRef> object;  // kObject: None or a number
};

struct GraphEntry {
  std::vector<uint64_t> words;
  Template made;
  std::vector<GraphOutput> outputs;
  int64_t drawn = 0;  // blocks that it takes from the generator
  // The call's numbers when it was captured, which words they are, and which may be others: those
  // are told to the template at each replay.
  c10::SmallVector<tpu_number_t, 4> numbers;
  c10::SmallVector<size_t, 4> number_words;
  std::vector<bool> varies;
  std::vector<uint64_t> skeleton;  // the words without them
  uint64_t last_use = 0;
};

// A call's signature, and where its tensors stand among the arguments.
struct GraphArguments {
  Signature signature;
  c10::SmallVector<size_t, 8> tensors;
};

namespace {

constexpr uint32_t kMaxGraphRecords = 1u << 20;
constexpr size_t kMaxGeneral = 8;
constexpr size_t kMaxTemplates = 64;  // per graph; the least recently used goes first

// The words without the numbers: what calls have in common that differ in them.
std::vector<uint64_t> skeleton_of(const Signature& signature) {
  std::vector<uint64_t> words(signature.words.begin(), signature.words.end());
  for (size_t k : signature.number_words) words[k] = 0;
  return words;
}

bool is_equal(const tpu_number_t& a, const tpu_number_t& b) {
  return a.is_float == b.is_float && a.as_int == b.as_int;  // all bits
}

// Numbers for which operations have ways of their own, or that may not fit an operation's dtype.
bool is_special(const tpu_number_t& number) {
  const double value = number.is_float ? number.as_double : static_cast<double>(number.as_int);
  const double size = std::abs(value);
  return !(size <= 65504) || value == 0 || size == 0.5 || size == 1 || size == 2 || size == 3;
}

bool add_object(PyObject* object, Signature* signature) {
  if (object == Py_None) return signature->add_none(), true;
  if (PyBool_Check(object)) return signature->add_bool(object == Py_True), true;
  if (PyFloat_CheckExact(object)) return signature->add_double(PyFloat_AS_DOUBLE(object)), true;
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && (signature->add_int(number), true);
}

bool read_arguments(PyObject* const* objects, size_t count, GraphArguments* arguments) {
  Signature& signature = arguments->signature;
  for (size_t i = 0; i < count; ++i) {
    PyObject* object = objects[i];
    if (!THPVariable_Check(object)) {
      if (!add_object(object, &signature)) return false;
      continue;
    }
    const size_t before = signature.inputs.size();
    if (!signature.add_tensor(THPVariable_Unpack(object))) return false;
    if (signature.inputs.size() > before) arguments->tensors.push_back(i);
  }
  // A tensor that is the whole of its storage may be written as a whole.
  uint64_t wholes = 0;
  for (size_t k = 0; k < signature.inputs.size(); ++k) {
    const tpu_operand_t& input = signature.inputs[k];
    const bool whole = input.offset == 0 && tpu_meta_bytes(tpu_meta_get(input.view)) ==
                                                tpu_storage_nbytes(input.storage);
    wholes = wholes << 1 | static_cast<uint64_t>(whole);
    if (k % 64 == 63) signature.words.push_back(wholes);
  }
  signature.words.push_back(wholes);
  return true;
}

// Another tensor over the storage of `base`.
at::Tensor view_tensor(const at::Tensor& base, const tpu_meta_t* meta, int64_t offset) {
  auto tensor = at::detail::make_tensor_base<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
      c10::scalarTypeToTypeMeta(scalar_type_from(meta->dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides({meta->sizes, (size_t)meta->rank},
                                                      {meta->strides, (size_t)meta->rank}, offset);
  return at::Tensor(std::move(tensor));
}

// An argument that the graph hands on is the same tensor.
at::Tensor view_of_argument(const at::Tensor& argument, const GraphOutput& output) {
  const tpu_meta_t* meta = tpu_meta_get(output.view);
  const bool same = output.distance == 0 &&
                    scalar_type_from(meta->dtype) == argument.scalar_type() &&
                    tpu_meta_matches(meta, static_cast<int>(argument.dim()),
                                     argument.sizes().data(), argument.strides().data());
  if (same) return argument;
  const int64_t begin = argument.storage_offset() * static_cast<int64_t>(argument.itemsize());
  const auto item = static_cast<int64_t>(tpu_dtype_bytes(meta->dtype));
  return view_tensor(argument, meta, (begin + output.distance) / item);
}

// A list of the results; those that are no views of arguments are put into `tensors` as well.
PyObject* make_results(const std::vector<GraphOutput>& outputs, c10::ArrayRef<tpu_result_t> results,
                       c10::SmallVectorImpl<at::Tensor>& tensors) {
  PyRef answer(PyList_New(static_cast<Py_ssize_t>(outputs.size())));
  for (size_t k = 0; k < outputs.size(); ++k) {
    const GraphOutput& output = outputs[k];
    PyObject* object = nullptr;
    if (output.kind == GraphOutput::kObject) {
      object = output.object->get();
      Py_INCREF(object);
    } else {
      if (output.kind == GraphOutput::kMade) {
        const tpu_result_t& result = results[output.number];
        const tpu_meta_t* meta = tpu_meta_get(result.meta);
        if (output.first != k) {
          tpu_storage_release(result.storage);
          tensors[k] = view_tensor(tensors[output.first], meta, result.offset);
        } else {
          tensors[k] = wrap_storage(result.storage, meta);
          tensors[k].unsafeGetTensorImpl()->set_storage_offset(result.offset);
        }
      }
      object = THPVariable_Wrap(tensors[k]);
    }
    PyList_SET_ITEM(answer.get(), static_cast<Py_ssize_t>(k), object);
  }
  return answer.release();
}

GeneratorImpl* generator() {
  return static_cast<GeneratorImpl*>(default_generator().unsafeGetGeneratorImpl());
}

tpu_random_state_t random_state() {
  GeneratorImpl* impl = generator();
  std::lock_guard<std::mutex> lock(impl->mutex_);
  return {static_cast<int64_t>(impl->current_seed()), static_cast<int64_t>(impl->get_offset())};
}

// Where the generator stands, which then moves on.
tpu_random_state_t take_random(int64_t blocks) {
  GeneratorImpl* impl = generator();
  std::lock_guard<std::mutex> lock(impl->mutex_);
  const auto seed = static_cast<int64_t>(impl->current_seed());
  const auto offset = static_cast<int64_t>(impl->get_offset());
  if (blocks != 0) impl->set_offset(static_cast<uint64_t>(offset + blocks));
  return {seed, offset};
}

void flush() { TPU_THROW_IF_ERROR(tpu_engine_flush(engine(), false)); }

}  // namespace

struct Graph::State {
  // Calls come with the GIL, but lose it while the engine works.
  std::mutex mutex;
  std::unordered_multimap<uint64_t, std::shared_ptr<GraphEntry>> entries;
  // Those whose numbers may be others, newest first.
  std::vector<std::shared_ptr<GraphEntry>> general;
  uint64_t clock = 0, replays = 0;
  // The capture between begin and end.
  std::optional<GraphArguments> captured;
  std::vector<at::Tensor> held;  // its tensors
  tpu_random_state_t random{};

  std::shared_ptr<const GraphEntry> find(const Signature& signature);
  std::shared_ptr<const GraphEntry> find_general(const Signature& signature);
  void generalise(const std::shared_ptr<GraphEntry>& entry);
  void add(std::shared_ptr<GraphEntry> entry, uint64_t hash);
  bool describe(PyObject* result, c10::SmallVectorImpl<tpu_operand_t>* made,
                std::vector<at::Tensor>* kept, GraphOutput* output) const;
};

Graph::Graph() : state_(std::make_unique<State>()) {}
Graph::~Graph() = default;
size_t Graph::template_count() const { return state_->entries.size(); }

uint64_t Graph::replay_count() const { return state_->replays; }

std::shared_ptr<const GraphEntry> Graph::State::find(const Signature& signature) {
  for (auto [it, end] = entries.equal_range(signature.hash()); it != end; ++it) {
    GraphEntry& entry = *it->second;
    if (c10::ArrayRef<uint64_t>(entry.words) == c10::ArrayRef<uint64_t>(signature.words)) {
      entry.last_use = ++clock;
      return it->second;
    }
  }
  return general.empty() || signature.numbers.empty() ? nullptr : find_general(signature);
}

bool fits(const GraphEntry& entry, const Signature& signature) {
  if (entry.words.size() != signature.words.size() ||
      c10::ArrayRef<size_t>(entry.number_words) != c10::ArrayRef<size_t>(signature.number_words)) {
    return false;
  }
  for (size_t k = 0; k < entry.numbers.size(); ++k) {
    const tpu_number_t& number = signature.numbers[k];
    if (!is_equal(number, entry.numbers[k]) && (!entry.varies[k] || is_special(number))) {
      return false;
    }
  }
  for (size_t k = 0, next = 0; k < entry.words.size(); ++k) {
    const bool is_number = next < entry.number_words.size() && entry.number_words[next] == k;
    next += is_number;
    if (!is_number && entry.words[k] != signature.words[k]) return false;
  }
  return true;
}

std::shared_ptr<const GraphEntry> Graph::State::find_general(const Signature& signature) {
  for (const auto& entry : general) {
    if (fits(*entry, signature)) return entry;
  }
  return nullptr;
}

// Results that are numbers would have to be computed.
bool gives_numbers(const GraphEntry& entry) {
  for (const GraphOutput& output : entry.outputs) {
    if (output.kind == GraphOutput::kObject && output.object->get() != Py_None) return true;
  }
  return false;
}

// Looks among the calls that differ in numbers alone for one that shows where they went, of as many
// as possible.
void Graph::State::generalise(const std::shared_ptr<GraphEntry>& entry) {
  const size_t count = entry->numbers.size();
  if (count == 0 || gives_numbers(*entry)) return;
  const auto differs = [&](const GraphEntry& other, size_t k) {
    return !is_equal(entry->numbers[k], other.numbers[k]);
  };
  std::vector<std::pair<size_t, const GraphEntry*>> others;
  for (const auto& [hash, other] : entries) {
    if (other == entry || other->skeleton != entry->skeleton || other->drawn != entry->drawn) {
      continue;
    }
    size_t differing = 0;
    for (size_t k = 0; k < count; ++k) differing += differs(*other, k);
    others.emplace_back(differing, other.get());
  }
  std::sort(others.rbegin(), others.rend());
  for (const auto& [differing, other] : others) {
    if (!tpu_template_bind_numbers(entry->made.get(), other->made.get(), static_cast<int>(count),
                                   entry->numbers.data(), other->numbers.data())) {
      continue;
    }
    for (size_t k = 0; k < count; ++k) entry->varies[k] = differs(*other, k);
    general.insert(general.begin(), entry);
    if (general.size() > kMaxGeneral) general.pop_back();
    return;
  }
}

void Graph::State::add(std::shared_ptr<GraphEntry> entry, uint64_t hash) {
  if (entries.size() >= kMaxTemplates) {
    auto oldest = entries.begin();
    for (auto it = entries.begin(); it != entries.end(); ++it) {
      if (it->second->last_use < oldest->second->last_use) oldest = it;
    }
    entries.erase(oldest);
  }
  entry->last_use = ++clock;
  generalise(entry);
  entries.emplace(hash, std::move(entry));
}

PyObject* Graph::run(PyObject* const* objects, size_t count, PyObject* owner) {
  if (debug_mode()) return nullptr;  // which runs and checks one op at a time
  GraphArguments arguments;
  if (!read_arguments(objects, count, &arguments)) return nullptr;
  // Others may drop it while the GIL is away.
  const std::shared_ptr<const GraphEntry> entry = state_->find(arguments.signature);
  if (entry == nullptr) return nullptr;
  ++state_->replays;
  const std::vector<GraphOutput>& outputs = entry->outputs;

  c10::SmallVector<at::Tensor, 8> tensors(outputs.size());
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].kind != GraphOutput::kView) continue;
    PyObject* base = objects[arguments.tensors[outputs[k].number]];
    tensors[k] = view_of_argument(THPVariable_Unpack(base), outputs[k]);
  }
  c10::SmallVector<tpu_result_t, 8> results(
      static_cast<size_t>(tpu_template_result_count(entry->made.get())));
  note_location();
  const tpu_random_state_t random = take_random(entry->drawn);
  without_gil([&] {
    flush();  // so that the graph's programs do not depend on what came before
    TPU_THROW_IF_ERROR(tpu_engine_replay(engine(), entry->made.get(),
                                         arguments.signature.inputs.data(), &random,
                                         arguments.signature.numbers.data(), results.data()));
    if (owner == nullptr) flush();
  });
  PyRef answer(make_results(outputs, results, tensors));
  if (owner == nullptr) return answer.release();
  tensors.clear();
  if (PyList_SetSlice(owner, 0, PyList_GET_SIZE(owner), nullptr) != 0) throw_python_error();
  without_gil(flush);
  return answer.release();
}

bool Graph::begin(PyObject* list) {
  State& s = *state_;
  if (debug_mode() || s.captured.has_value()) return false;
  s.captured.emplace();
  const auto count = static_cast<size_t>(PyList_GET_SIZE(list));
  if (!read_arguments(PySequence_Fast_ITEMS(list), count, &*s.captured)) {
    return s.captured.reset(), false;
  }
  for (size_t i : s.captured->tensors) {
    s.held.push_back(THPVariable_Unpack(PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i))));
  }
  s.random = random_state();
  tpu_capture_options_t options{};
  options.max_records = kMaxGraphRecords;
  options.writes = true;
  options.recurs = true;
  options.random = &s.random;
  bool began = false;
  const Signature& signature = s.captured->signature;
  without_gil([&] {
    flush();
    TPU_THROW_IF_ERROR(tpu_engine_capture_begin(engine(), static_cast<int>(signature.inputs.size()),
                                                signature.inputs.data(), &options, &began));
  });
  if (!began) s.captured.reset(), s.held.clear();
  return began;
}

// False for a result that no replay could give.
bool Graph::State::describe(PyObject* result, c10::SmallVectorImpl<tpu_operand_t>* made,
                            std::vector<at::Tensor>* kept, GraphOutput* output) const {
  if (!THPVariable_Check(result)) {
    Signature plain;
    if (!add_object(result, &plain)) return false;
    Py_INCREF(result);
    output->kind = GraphOutput::kObject;
    output->object = std::make_shared<PyRef>(result);
    return true;
  }
  const at::Tensor& tensor = THPVariable_Unpack(result);
  if (!tensor.defined() || !is_tpu(tensor) || is_lazy(tensor)) return false;
  tpu_operand_t operand;
  tensor_operand(tensor, &operand);
  const auto& inputs = captured->signature.inputs;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].storage != operand.storage) continue;
    output->kind = GraphOutput::kView;
    output->number = k;
    output->view = operand.view;
    output->distance = operand.offset * static_cast<int64_t>(tensor.itemsize()) -
                       inputs[k].offset * static_cast<int64_t>(held[k].itemsize());
    return true;
  }
  output->kind = GraphOutput::kMade;
  output->number = made->size();
  made->push_back(operand);
  kept->push_back(tensor);
  return true;
}

std::string Graph::end(PyObject* list) {
  State& s = *state_;
  TORCH_CHECK(s.captured.has_value(), "internal: no capture of this graph is under way");
  GraphEntry entry;
  PyRef results(PySequence_Fast(list, "a graph gives a list or tuple"));
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(results.get()));
  c10::SmallVector<tpu_operand_t, 8> operands;
  std::vector<at::Tensor> kept;
  bool describable = true;
  for (size_t k = 0; k < count && describable; ++k) {
    GraphOutput& output = entry.outputs.emplace_back();
    output.first = k;
    PyObject* result = PySequence_Fast_GET_ITEM(results.get(), static_cast<Py_ssize_t>(k));
    describable = s.describe(result, &operands, &kept, &output);
    if (!describable || output.kind != GraphOutput::kMade) continue;
    for (size_t j = k; j-- > 0;) {
      const GraphOutput& other = entry.outputs[j];
      if (other.kind == GraphOutput::kMade &&
          operands[other.number].storage == operands.back().storage)
        output.first = j;
    }
  }
  if (!describable) return cancel(), "it gives something else than tensors on the device";
  const Signature signature = std::move(s.captured->signature);
  std::vector<at::Tensor> held = std::move(s.held);  // until the capture has ended
  s.captured.reset();
  s.held.clear();
  tpu_template_t* made = nullptr;
  const char* obstacle = nullptr;
  without_gil([&] {
    TPU_THROW_IF_ERROR(tpu_engine_capture_end(engine(), "a compiled graph",
                                              static_cast<int>(operands.size()), operands.data(),
                                              &made, &obstacle));
    entry.made = Template(made, tpu_template_destroy);
  });
  held.clear();  // what nobody else holds may be overwritten, now as at each replay
  without_gil(flush);
  if (made == nullptr) return obstacle != nullptr ? obstacle : "";
  entry.drawn = random_state().offset - s.random.offset;
  entry.words.assign(signature.words.begin(), signature.words.end());
  entry.numbers = signature.numbers;
  entry.number_words = signature.number_words;
  entry.varies.resize(signature.numbers.size());
  entry.skeleton = skeleton_of(signature);
  s.add(std::make_shared<GraphEntry>(std::move(entry)), signature.hash());
  return "";
}

void Graph::cancel() {
  if (!state_->captured.has_value()) return;
  tpu_engine_capture_cancel(engine());
  state_->captured.reset();
  state_->held.clear();
}

}  // namespace tpu_shim
