"""Where a training step ends. Fused mode records until something is needed; after an optimizer's step
nothing that follows can make the step's programs better, so they are launched at once and run while
Python goes on with the next step."""


def install(torch):
  """Registers the hook through PyTorch's public interface; called once."""
  from torch.optim.optimizer import register_optimizer_step_post_hook

  from torch_tpu import _C

  is_compiling = torch.compiler.is_compiling

  def launch_step(optimizer, args, kwargs):
    # While Dynamo traces the step this folds to nothing; before first use there is nothing to launch.
    if not is_compiling() and _C.is_initialized():
      _C.flush()

  register_optimizer_step_post_hook(launch_step)
