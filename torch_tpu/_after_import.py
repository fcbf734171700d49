"""Calls a function with a module when that module has been imported, now or later.

One finder at the head of sys.meta_path looks names up in a dict, so other imports cost one lookup
each, and nothing is imported that nobody asked for.
"""

import importlib.abc
import importlib.machinery
import sys

_waiting = {}  # name of a module -> functions to call with it


def after_import(name, function):
  """Calls ``function(module)`` once the module `name` has run to its end: at once if it has, when
  its import ends if that is under way or has not begun. What the function raises, the import does.
  """
  module = sys.modules.get(name)
  spec = getattr(module, "__spec__", None)
  if module is not None and not getattr(spec, "_initializing", False):
    function(module)
    return
  _waiting.setdefault(name, []).append(function)
  if module is not None:
    spec.__class__ = _SpecOfRunningModule
  elif _finder not in sys.meta_path:
    sys.meta_path.insert(0, _finder)


def _call(module):
  for function in _waiting.pop(module.__name__, ()):
    function(module)


class _Finder(importlib.abc.MetaPathFinder):
  def find_spec(self, name, path, target=None):
    if name not in _waiting:
      return None
    for finder in sys.meta_path:
      spec = None if finder is self else finder.find_spec(name, path, target)
      if spec is not None:
        break
    else:
      return None
    run = spec.loader.exec_module

    def exec_module(module):
      run(module)
      _call(module)

    spec.loader.exec_module = exec_module
    return spec


class _SpecOfRunningModule(importlib.machinery.ModuleSpec):
  """For a module that is running, perhaps because it is what imports torch: no finder will be asked
  for it again, but Python notes in its spec when it has ended."""

  @property
  def _initializing(self):
    return self.__dict__.get("_initializing", False)

  @_initializing.setter
  def _initializing(self, running):
    self.__dict__["_initializing"] = running
    module = sys.modules.get(self.name)
    if not running and module is not None:
      _call(module)


_finder = _Finder()
