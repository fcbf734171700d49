"""When recorded work is launched without being asked for: around an optimizer's step, and at the
end of the process.

Fused mode records until something is needed. Forward and backward run on the device while Python
works through the optimizer's parameters, and the update runs while Python goes on with the next
step. Cuts at these two places cost nothing: gradients and parameters outlive both programs anyway.
"""

import atexit


def install(torch):
  """Registers both hooks through public interfaces; called once."""
  from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
  )

  from torch_tpu import _C

  is_compiling = torch.compiler.is_compiling

  def launch(optimizer, args, kwargs):
    # While Dynamo traces the step this folds to nothing; before first use nothing is recorded.
    if not is_compiling() and _C.is_initialized():
      _C.flush()

  def finish():
    # Work in flight, or a compiler at work, while the process takes the plugin's libraries down
    # would crash; and an error that nobody asked for is better printed than lost.
    if _C.is_initialized() and not torch.tpu._is_in_bad_fork():
      _C.synchronize()
      _C.stop_builds()

  register_optimizer_step_pre_hook(launch)
  register_optimizer_step_post_hook(launch)
  atexit.register(finish)
