"""Exceptions that PyTorch has no class for."""

import builtins


class IndexError(builtins.IndexError, RuntimeError):
  """An index is out of range.

  For this PyTorch raises IndexError in some operations (index_select, embedding) and RuntimeError
  in others (gather, scatter, one_hot); code written for either catches this one.
  """
