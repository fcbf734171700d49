"""A line in the log "torch_tpu" for each set of programs that is made, with the fact that was new.

`TORCH_LOGS=torch_tpu` shows it, and so does any configuration of Python's logging.
"""

import logging

from torch_tpu import _C

log = logging.getLogger("torch_tpu")
_next = 0


def install():
  """Has the engine call this module when there is something to tell; starts nothing."""
  _C.tell_reasons(_tell)


def _tell():
  global _next
  _next, reasons = _C.reasons(_next)
  for reason in reasons:
    log.info("compile: %s", reason)
