/* TorchTPU core: the public header. Include this one from outside core/.
 *
 * The core records tensor operations, writes StableHLO and runs it through a PJRT plugin. It knows
 * no PyTorch and no Python: it receives operations by id, tensor metadata by id and attributes as
 * tagged values.
 *
 * House rules, stated once; they hold in every header below core/.
 *
 * Ownership. `create` and `copy` give the caller a reference that must be released. `retain` adds
 *   one, `release` drops one and accepts NULL. `get` and `borrow` lend: the pointer lives as long
 *   as its owner. A callee that keeps an argument retains it. `take` in a name or comment means
 *   that the callee owns the argument from then on, also when it fails.
 * Out-parameters come last, are called `out_...` and are set on entry (NULL or zero), so that they
 *   are valid to release after a failure.
 * Strings are UTF-8. `const char*` is NUL-terminated; pointer plus length is not.
 * Threads. Objects may be used from any thread unless their header says otherwise. One engine lock
 *   orders all recording; the core never calls back into its user while it holds that lock.
 * Errors. Every function that can fail returns `tpu_status_t`: NULL is success, anything else must
 *   be freed or passed on. Codes equal PJRT's (and absl's). The core never aborts the process.
 * Names. `tpu_<folder or object>_<noun>_<verb>` crosses folders, `tpui_` does not: it is shared by
 *   the files of one folder. Anything static has no prefix and two words at least.
 */
#ifndef TPU_CORE_H_
#define TPU_CORE_H_

#include "base/env.h"
#include "base/status.h"
#include "base/version.h"
#include "engine/engine.h"
#include "engine/mode.h"
#include "host/host.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/rules.h"
#include "trace/location.h"
#include "types/dtype.h"
#include "types/meta.h"

#endif  // TPU_CORE_H_
