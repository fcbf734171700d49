// Calls of operations without a lowering, recorded as host steps (op table: FALLBACK): they run in
// their place in the window, with the host's kernel, and nothing is launched or waited for when
// they are made.
#ifndef TPU_SHIM_HOST_CALLS_H_
#define TPU_SHIM_HOST_CALLS_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

#include "host_ops.h"

namespace tpu_shim {

// What the first call with a signature, which runs at once, teaches for the next ones: meta kernels
// are right about the results' sizes and dtypes, but not about the strides of the CPU's kernels.
class HostCallLesson {
 public:
  // Before the call: keeps what PyTorch has to be asked.
  void ask(const c10::OperatorHandle& op, std::string signature, const c10::IValue* args);
  // After it: the stack ends with its results.
  void learn(const torch::jit::Stack& stack);

 private:
  bool resized(const c10::IValue* results) const;

  std::optional<c10::OperatorHandle> op_;  // nothing is to be learnt
  std::string signature_;
  torch::jit::Stack question_;
  std::vector<std::vector<int64_t>> written_;  // sizes of what the call writes
};

// Records the call; the stack then holds its results. False, with the stack untouched, for calls
// that must run at once: the first one with such arguments (`lesson` then says what to learn from
// it), and those whose results PyTorch cannot foretell (data decides, or there is no meta kernel),
// that draw random numbers, return views or lists, or are not PyTorch's own (kernels of others may
// be Python, or call the device).
bool record_host_call(const c10::OperatorHandle& op, c10::DispatchKey host_key,
                      torch::jit::Stack* stack, HostCallLesson* lesson);

// The form of such a record, or nothing.
std::unique_ptr<HostForm> make_call_form(const tpu_record_t& record);

}  // namespace tpu_shim

#endif  // TPU_SHIM_HOST_CALLS_H_
