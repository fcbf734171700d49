#include "adapter.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Generator.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "debug_checks.h"
#include "fallback.h"
#include "generator.h"
#include "hot.h"
#include "meta_query.h"
#include "number_checks.h"
#include "record.h"

namespace tpu_shim {

// What an argument becomes.
enum class Kind : uint8_t {
  kTensor,       // operand; Tensor? too
  kTensorList,   // operands and their number as attribute; Tensor?[] too
  kScalar,       // operand
  kFloat,        // operand
  kInt,          // attribute: int, bool, enums
  kDtype,        // attribute
  kInts,         // attribute
  kText,         // attribute
  kGenerator,    // feeds the appended seed and offset
  kOut,          // destination
  kSkip,         // layout, device, pin_memory
  kUnsupported,  // no place in the table's rule
};

namespace {

c10::TypePtr strip_optional(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) return optional->getElementType();
  return type;
}

Kind kind_of_list(const c10::ListType& list) {
  switch (strip_optional(list.getElementType())->kind()) {
    case c10::TypeKind::TensorType: return Kind::kTensorList;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::BoolType: return Kind::kInts;
    default: return Kind::kUnsupported;
  }
}

Kind kind_of(const c10::Argument& arg) {
  if (arg.is_out()) return Kind::kOut;
  if (arg.name() == "layout" || arg.name() == "device" || arg.name() == "pin_memory")
    return Kind::kSkip;
  const c10::TypePtr type = strip_optional(arg.real_type());
  switch (type->kind()) {
    case c10::TypeKind::TensorType: return Kind::kTensor;
    case c10::TypeKind::NumberType: return Kind::kScalar;
    case c10::TypeKind::FloatType: return Kind::kFloat;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::MemoryFormatType: return Kind::kInt;
    case c10::TypeKind::ScalarTypeType: return Kind::kDtype;
    case c10::TypeKind::StringType: return Kind::kText;
    case c10::TypeKind::GeneratorType: return Kind::kGenerator;
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::DeviceObjType: return Kind::kSkip;
    case c10::TypeKind::ListType: return kind_of_list(type->expectRef<c10::ListType>());
    default: return Kind::kUnsupported;
  }
}

// Numbers that scale a result rather than take part in it do not promote: add(bool, bool, alpha=1)
// is bool.
bool promotes(const c10::Argument& arg) {
  return arg.name() != "alpha" && arg.name() != "beta" && arg.name() != "value" &&
         arg.name() != "weight";
}

// All overloads of an ATen name, from one walk over the dispatcher.
const std::vector<c10::OperatorName>& overloads_of(const std::string& base) {
  static auto* map = [] {
    auto* made = new std::unordered_map<std::string, std::vector<c10::OperatorName>>();
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      (*made)[name.name].push_back(name);
    }
    return made;
  }();
  static const std::vector<c10::OperatorName> none;
  auto it = map->find(base);
  return it == map->end() ? none : it->second;
}

// Kernels behind these names have no meta kernel; the operations in front of them do.
c10::OperatorHandle question_for(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (name.name == "aten::convolution_overrideable") {
    return c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  }
  if (name.name == "aten::_logcumsumexp") {
    return c10::Dispatcher::singleton().findSchemaOrThrow("aten::logcumsumexp",
                                                          name.overload_name.c_str());
  }
  return op;
}

bool is_write(const c10::Argument& arg) {
  return arg.alias_info() != nullptr && arg.alias_info()->isWrite();
}

}  // namespace

class Overload {
 public:
  Overload(tpu_op_t row, const c10::OperatorHandle& op);

  // "" if the adapter can serve this schema.
  const std::string& obstacle() const { return obstacle_; }
  const c10::OperatorHandle& handle() const { return op_; }
  void run(torch::jit::Stack* stack);

 private:
  bool add_arguments(Call* call, const c10::IValue* args, bool skip_self,
                     std::optional<at::Generator>* generator) const;
  bool add_argument(Call* call, size_t i, const c10::IValue& value,
                    std::optional<at::Generator>* generator) const;
  int64_t random_numel(const c10::IValue* args) const;
  void append_random(Call* call, const c10::IValue* args,
                     const std::optional<at::Generator>& generator) const;
  tpu_dtype_t compute_dtype(const c10::IValue* args) const;
  bool ask_pytorch(const c10::IValue* args, Call* call, bool set_metas) const;
  void run_functional(torch::jit::Stack* stack);
  void run_in_place(torch::jit::Stack* stack);
  void draw_parts(const at::Tensor& self, torch::jit::Stack* stack);
  void run_out(torch::jit::Stack* stack);
  void run_overwrite_functional(torch::jit::Stack* stack);
  void check_out(const c10::IValue* args) const;
  void find_functional();
  bool has(uint32_t flag) const { return (flags_ & flag) != 0; }
  const c10::IValue* arguments(const torch::jit::Stack& stack) const {
    return stack.data() + stack.size() - kinds_.size();
  }

  c10::OperatorHandle op_;
  c10::OperatorHandle question_;  // what to ask on meta tensors
  tpu_op_t row_;
  uint32_t flags_;
  tpu_call_variant_t variant_ = TPU_CALL_FUNCTIONAL;
  std::vector<Kind> kinds_;
  std::vector<bool> promotes_;
  size_t out_count_ = 0;
  size_t return_count_ = 0;
  std::optional<c10::OperatorHandle> functional_;  // of an out= overload
  NumberCheck check_numbers_;
  std::string obstacle_;
};

Overload::Overload(tpu_op_t row, const c10::OperatorHandle& op)
    : op_(op),
      question_(question_for(op)),
      row_(row),
      flags_(tpu_op_info(row)->flags),
      check_numbers_(number_check(op.operator_name())) {
  const c10::FunctionSchema& schema = op.schema();
  size_t written = 0;
  for (const c10::Argument& arg : schema.arguments()) {
    const Kind kind = kind_of(arg);
    kinds_.push_back(kind);
    promotes_.push_back(promotes(arg));
    if (kind == Kind::kOut) ++out_count_;
    if (kind == Kind::kUnsupported)
      obstacle_ = "argument '" + arg.name() + "' has an unsupported type";
    if (kind != Kind::kOut && is_write(arg)) ++written;
  }
  return_count_ = schema.returns().size();
  for (const c10::Argument& result : schema.returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType)
      obstacle_ = "returns something else than tensors";
    if (written == 0 && out_count_ == 0 && result.alias_info() != nullptr)
      obstacle_ = "returns a view";
  }
  if (out_count_ > 0) {
    variant_ = TPU_CALL_OUT;
    if (written > 0) obstacle_ = "writes to inputs besides out=";
    find_functional();
  } else if (written > 0) {
    variant_ = TPU_CALL_IN_PLACE;
    if (written > 1 || return_count_ != 1 || kinds_[0] != Kind::kTensor ||
        !is_write(schema.arguments()[0])) {
      obstacle_ = "writes to other arguments than the first";
    }
  }
}

// The overload without out=, so that its results' own dtypes can be asked.
void Overload::find_functional() {
  const auto& mine = op_.schema().arguments();
  const size_t count = mine.size() - out_count_;
  for (const c10::OperatorName& name : overloads_of(op_.operator_name().name)) {
    auto other = c10::Dispatcher::singleton().findSchema(name);
    if (!other.has_value()) continue;
    const auto& theirs = other->schema().arguments();
    bool same = theirs.size() == count && other->schema().returns().size() == return_count_;
    for (size_t i = 0; same && i < count; ++i) {
      same = theirs[i].name() == mine[i].name() && !is_write(theirs[i]) &&
             *theirs[i].real_type() == *mine[i].real_type();
    }
    if (same) functional_ = other;
  }
}

bool Overload::add_argument(Call* call, size_t i, const c10::IValue& value,
                            std::optional<at::Generator>* generator) const {
  switch (kinds_[i]) {
    case Kind::kTensor:
      if (value.isNone()) return call->none(), true;
      return call->tensor(value.toTensor()), true;
    case Kind::kTensorList: {
      if (value.isNone()) return call->attr_none(), true;
      const auto list = value.toListRef();
      for (const c10::IValue& item : list) {
        item.isNone() ? call->none() : call->tensor(item.toTensor());
      }
      call->attr(static_cast<int64_t>(list.size()));
      return true;
    }
    case Kind::kScalar:
    case Kind::kFloat:
      if (value.isNone()) return call->none(), true;
      return call->scalar(value.toScalar()), true;
    case Kind::kInt:
      if (value.isNone()) return call->attr_none(), true;
      call->attr(value.isBool() ? value.toBool() : value.toSymInt().guard_int(__FILE__, __LINE__));
      return true;
    case Kind::kDtype:
      if (value.isNone()) return call->attr_none(), true;
      call->attr_dtype(value.toScalarType());
      return true;
    case Kind::kInts: {
      if (value.isNone()) return call->attr_none(), true;
      c10::SmallVector<int64_t, 8> ints;
      if (value.isInt() || value.isBool()) {
        ints.push_back(value.isBool() ? value.toBool() : value.toInt());
      } else {
        for (const c10::IValue& item : value.toListRef()) {
          ints.push_back(item.isBool() ? item.toBool()
                                       : item.toSymInt().guard_int(__FILE__, __LINE__));
        }
      }
      call->attr_ints(ints);
      return true;
    }
    case Kind::kText:
      if (value.isNone()) return call->attr_none(), true;
      call->attr_text(value.toStringView());
      return true;
    case Kind::kGenerator:
      if (!value.isNone()) *generator = value.toGenerator();
      return true;
    case Kind::kOut:
    case Kind::kSkip: return true;
    case Kind::kUnsupported: return false;
  }
  return false;
}

// False when an argument has no place in a call (a complex number): the host must run it.
bool Overload::add_arguments(Call* call, const c10::IValue* args, bool skip_self,
                             std::optional<at::Generator>* generator) const {
  for (size_t i = skip_self ? 1 : 0; i < kinds_.size(); ++i) {
    if (!add_argument(call, i, args[i], generator)) return false;
  }
  return true;
}

// Elements of the result, which is what a random op takes from the generator (lower/random.h).
int64_t Overload::random_numel(const c10::IValue* args) const {
  const auto& names = op_.schema().arguments();
  std::vector<int64_t> shape;
  int64_t factor = 1;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i] == Kind::kInt && (names[i].name() == "n" || names[i].name() == "num_samples")) {
      factor = args[i].toSymInt().guard_int(__FILE__, __LINE__);
      if (!shape.empty()) shape.pop_back();  // multinomial: rows of weights, samples from each
    } else if (kinds_[i] == Kind::kTensor && args[i].isTensor() && args[i].toTensor().defined()) {
      shape = at::infer_size(shape, args[i].toTensor().sizes());
    }
    if (variant_ == TPU_CALL_IN_PLACE) break;
  }
  return c10::multiply_integers(shape) * factor;
}

void Overload::append_random(Call* call, const c10::IValue* args,
                             const std::optional<at::Generator>& generator) const {
  const PhiloxState state = reserve_random(generator, random_numel(args));
  call->integer(static_cast<int64_t>(state.seed)).integer(static_cast<int64_t>(state.offset));
}

// PyTorch's result_type over the operands, and with INT_TO_FLOAT the default dtype for integers.
tpu_dtype_t Overload::compute_dtype(const c10::IValue* args) const {
  if (!has(TPU_OP_PROMOTE)) return TPU_DTYPE_INVALID;
  at::native::ResultTypeState state;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (args[i].isNone() || !promotes_[i]) continue;
    if (kinds_[i] == Kind::kTensor) {
      if (args[i].toTensor().defined())
        state = at::native::update_result_type_state(args[i].toTensor(), state);
    } else if (kinds_[i] == Kind::kScalar) {
      state = at::native::update_result_type_state(args[i].toScalar(), state);
    } else if (kinds_[i] == Kind::kTensorList) {
      for (const c10::IValue& item : args[i].toListRef()) {
        if (item.isTensor()) state = at::native::update_result_type_state(item.toTensor(), state);
      }
    }
  }
  c10::ScalarType type = at::native::result_type(state);
  if (has(TPU_OP_INT_TO_FLOAT) && c10::isIntegralType(type, /*includeBool=*/true)) {
    type = c10::get_default_dtype_as_scalartype();
  }
  return checked_dtype(type);
}

// Calls the overload on meta tensors. False when PyTorch has no meta kernel for it.
bool Overload::ask_pytorch(const c10::IValue* args, Call* call, bool set_metas) const {
  const bool use_functional = functional_.has_value();
  const size_t count = use_functional ? kinds_.size() - out_count_ : kinds_.size();
  torch::jit::Stack stack;
  for (size_t i = 0; i < count; ++i) {
    if (kinds_[i] == Kind::kOut) {
      stack.emplace_back(at::Tensor(at::detail::empty_meta({0}, args[i].toTensor().scalar_type())));
    } else {
      stack.push_back(to_meta(args[i]));
    }
  }
  try {
    call_below_modes(use_functional ? *functional_ : question_, &stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (...) {
    throw_as_on_cpu(op_, args, kinds_.size());
    throw;
  }
  if (!has(TPU_OP_RANDOM)) {
    refuse_dtypes_as_on_cpu(question_, args, kinds_.size(),
                            tpu_op_info(row_)->family == TPU_FAMILY_POINTWISE);
  }
  for (size_t k = 0; set_metas && k < return_count_; ++k) {
    const at::Tensor& result = stack[k].toTensor();
    call->set_result_meta(k, result.defined() ? result_meta_of(result) : absent_meta());
  }
  call->compute(compute_dtype(args)).known();
  return true;
}

void Overload::run_functional(torch::jit::Stack* stack) {
  const c10::IValue* args = arguments(*stack);
  Call call(row_);
  std::optional<at::Generator> generator;
  if (!add_arguments(&call, args, /*skip_self=*/false, &generator)) return run_on_host(op_, stack);
  if (has(TPU_OP_RANDOM)) append_random(&call, args, generator);
  for (size_t k = 0; k < return_count_; ++k) call.result();
  if (!call.try_record()) {
    if (!ask_pytorch(args, &call, true)) return run_on_host(op_, stack);
    call.record();
  }
  torch::jit::drop(*stack, kinds_.size());
  for (size_t k = 0; k < return_count_; ++k) stack->emplace_back(call.take(k));
}

// Complex numbers are drawn part by part; the variance of a normal one is shared by its parts.
void Overload::draw_parts(const at::Tensor& self, torch::jit::Stack* stack) {
  c10::IValue* args = stack->data() + stack->size() - kinds_.size();
  const std::string& name = op_.operator_name().name;
  TORCH_CHECK_NOT_IMPLEMENTED(name == "aten::uniform_" || name == "aten::normal_", "\"", name,
                              "\" not implemented for '", self.scalar_type(), "'");
  args[0] = at::view_as_real(self);
  if (name == "aten::normal_") args[2] = args[2].toDouble() / std::sqrt(2.0);
  run_in_place(stack);
  stack->back() = self;
}

void Overload::run_in_place(torch::jit::Stack* stack) {
  const c10::IValue* args = arguments(*stack);
  const at::Tensor self = args[0].toTensor();
  if (C10_UNLIKELY(is_lazy(self))) {
    const at::Tensor plain = self.resolve_conj().resolve_neg();
    (*stack)[stack->size() - kinds_.size()] = plain;
    run_in_place(stack);
    stack->back() = self.copy_(plain);
    return;
  }
  if (C10_UNLIKELY(has(TPU_OP_RANDOM) && self.is_complex())) return draw_parts(self, stack);
  const bool overwrite = has(TPU_OP_OVERWRITE);
  Call call(row_, TPU_CALL_IN_PLACE);
  std::optional<at::Generator> generator;
  if (!add_arguments(&call, args, overwrite, &generator)) return run_on_host(op_, stack);
  if (has(TPU_OP_RANDOM)) append_random(&call, args, generator);
  call.written(self);
  if (!call.try_record()) {
    // One number for all elements may be written to one element twice.
    if (!overwrite || has(TPU_OP_RANDOM)) at::assert_no_internal_overlap(self);
    if (!ask_pytorch(args, &call, false)) return run_on_host(op_, stack);
    call.record();
  }
  torch::jit::drop(*stack, kinds_.size());
  stack->emplace_back(self);
}

// fill(self, 1): like the in-place form on a new tensor, since self is only a shape.
void Overload::run_overwrite_functional(torch::jit::Stack* stack) {
  const c10::IValue* args = arguments(*stack);
  const at::Tensor result = at::empty_like(args[0].toTensor());
  Call call(row_, TPU_CALL_IN_PLACE);
  std::optional<at::Generator> generator;
  if (!add_arguments(&call, args, /*skip_self=*/true, &generator)) return run_on_host(op_, stack);
  if (has(TPU_OP_RANDOM)) append_random(&call, args, generator);
  call.written(result).record();
  torch::jit::drop(*stack, kinds_.size());
  stack->emplace_back(result);
}

// Computed as the functional form into new storages, then written: one more record, which fuses,
// and none of the resize-while-recording cases.
void Overload::run_out(torch::jit::Stack* stack) {
  const c10::IValue* args = arguments(*stack);
  Call call(row_);
  std::optional<at::Generator> generator;
  const bool skip_self = has(TPU_OP_OVERWRITE) && kinds_[0] == Kind::kTensor;
  if (!add_arguments(&call, args, skip_self, &generator)) return run_on_host(op_, stack);
  if (has(TPU_OP_RANDOM)) append_random(&call, args, generator);
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i] != Kind::kOut) continue;
    outs.push_back(args[i].toTensor());
    if (!is_tpu(outs.back())) throw_device_mismatch(outs.back().device());
    // Without a functional twin the results take the outs' dtypes, which must then be part of the
    // key.
    if (!functional_.has_value()) call.attr_dtype(outs.back().scalar_type());
  }
  for (size_t k = 0; k < return_count_; ++k) call.result();
  if (skip_self || !call.try_record()) {
    if (!ask_pytorch(args, &call, true)) return run_on_host(op_, stack);
    call.record();
  }
  for (size_t k = 0; k < return_count_; ++k) {
    const at::Tensor result = call.take(k);
    // Some operations convert to out's dtype, some refuse: PyTorch knows.
    if (!has(TPU_OP_PROMOTE) && result.scalar_type() != outs[k].scalar_type()) check_out(args);
    write_out(result, outs[k]);
  }
  torch::jit::drop(*stack, kinds_.size());
  for (const at::Tensor& out : outs) stack->emplace_back(out);
}

// Throws PyTorch's error if this out= call would be refused.
void Overload::check_out(const c10::IValue* args) const {
  torch::jit::Stack stack;
  for (size_t i = 0; i < kinds_.size(); ++i) stack.push_back(to_meta(args[i]));
  try {
    call_below_modes(op_, &stack);
  } catch (const c10::NotImplementedError&) {
    return;  // no meta kernel for the out= form: converted, as TensorIterator does
  } catch (...) {
    throw_as_on_cpu(op_, args, kinds_.size());
    throw;
  }
}

void Overload::run(torch::jit::Stack* stack) {
  if (check_numbers_ != nullptr) check_numbers_(arguments(*stack));
  if (C10_UNLIKELY(debug_mode())) check_index_arguments(op_.schema(), arguments(*stack));
  switch (variant_) {
    case TPU_CALL_FUNCTIONAL:
      if (has(TPU_OP_OVERWRITE) && kinds_[0] == Kind::kTensor) {
        run_overwrite_functional(stack);
      } else {
        run_functional(stack);
      }
      break;
    case TPU_CALL_IN_PLACE: run_in_place(stack); break;
    case TPU_CALL_OUT: run_out(stack); break;
  }
}

void write_out(const at::Tensor& result, const at::Tensor& out) {
  TORCH_CHECK(at::canCast(result.scalar_type(), out.scalar_type()), "result type ",
              result.scalar_type(), " can't be cast to the desired output type ",
              out.scalar_type());
  at::assert_no_internal_overlap(out);
  const bool resized = at::native::resize_output(out, result.sizes());
  if (resized && !result.is_contiguous()) {
    out.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
  }
  is_lazy(out) ? (void)out.copy_(result) : copy_on_device(result, out);
}

// --- registration ---

namespace {

std::vector<std::string>& unregistered() {
  static auto* names = new std::vector<std::string>();
  return *names;
}

c10::OperatorName operator_name(const std::string& text) {
  const size_t dot = text.find('.');
  return {"aten::" + text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1)};
}

// Plans are made at an overload's first call: import stays cheap.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(tpu_op_t row) : row_(row) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    Overload* plan = plan_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(plan == nullptr)) plan = make(op);
    if (C10_UNLIKELY(!plan->obstacle().empty())) return run_on_host(op, stack);
    plan->run(stack);
  }

 private:
  Overload* make(const c10::OperatorHandle& op) {
    Overload* made = new Overload(row_, op);
    Overload* expected = nullptr;
    if (plan_.compare_exchange_strong(expected, made)) return made;
    delete made;
    return expected;
  }
  tpu_op_t row_;
  std::atomic<Overload*> plan_{nullptr};
};

// Overloads whose rows are not MANUAL, and that a file of the shim registers all the same.
bool has_own_kernel(const std::string& name) {
  for (const char* own : {"index.Tensor", "_index_put_impl_", "nonzero", "masked_select",
                          "convolution_backward_overrideable"}) {
    if (name == own) return true;
  }
  return has_hot_kernel(name);
}

// Registered once per overload, except what other files of the shim register themselves.
void register_row(torch::Library& m, tpu_op_t row) {
  const tpu_op_info_t* info = tpu_op_info(row);
  if ((info->flags & (TPU_OP_MANUAL | TPU_OP_INTERNAL)) != 0) return;
  std::istringstream names(info->aten);
  for (std::string name; names >> name;) {
    if (has_own_kernel(name)) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(operator_name(name));
    if (!op.has_value()) {
      unregistered().push_back(name + ": no such ATen overload");
    } else if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
               !op->hasKernelForDispatchKey(c10::DispatchKey::Autograd)) {
      unregistered().push_back(name +
                               ": composite with autograd of its parts; a kernel would lose it");
    } else {
      m.impl(name.c_str(),
             torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(row)));
    }
  }
}

}  // namespace

Overload* overload(tpu_op_t row, const char* name) {
  return new Overload(row, c10::Dispatcher::singleton().findSchema(operator_name(name)).value());
}

void run_boxed(Overload* o, torch::jit::Stack* stack) { o->run(stack); }

const std::vector<std::string>& unregistered_ops() { return unregistered(); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (tpu_op_t row = 1; row < tpu_op_count(); ++row) register_row(m, row);
}

}  // namespace tpu_shim
